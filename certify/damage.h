// What is left of a damaged checkpoint: file by file which records are intact and which are lost,
// tensor by tensor what is lost and what another holder still has. Internal to certify/. Tested by
// damage_test.cc.
//
// Covers: files that are missing, cut, empty, or have a record with another sum. A file that cannot
// be opened counts as lost for the tensors, though records of it may be intact and are listed.
// Does not cover: tensors that only lost files name; content that was wrong before it was summed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "certify/file_scan.h"
#include "certify/subject.h"

namespace certify {

// Half-open, sorted, apart from each other.
using Intervals = std::vector<std::pair<int64_t, int64_t>>;
// Elements that are in both.
Intervals Intersect(const Intervals& a, const Intervals& b);
int64_t CountOf(const Intervals& intervals);

// Records, as (file relative to the run folder, record), whose bytes are not what was written.
using BadRecords = std::set<std::pair<std::string, std::string>>;

// The tensors of a checkpoint of which something is lost or stands on another holder:
// [{"name", "state", "outcome", "lost", "numel", "text"}]. Outcomes: "rebuildable" (another holder
// has the same bits, or a weight is its intact master rounded), "approximate" (a master from its
// 16-bit weight), "partly lost", "lost".
nlohmann::ordered_json DamagedTensors(const Subject& subject, const BadRecords& bad);

// The whole report: {"files", "tensors", "note"}; null where nothing is damaged or missing.
// `subject`: the opened checkpoint; null where it could not be opened: then it is opened without
// its damaged files. Errors: kIo, kNotFound.
checkpoint::Result<nlohmann::ordered_json> AssessDamage(const std::filesystem::path& path,
                                                        const Declared& declared,
                                                        const std::vector<ScannedFile>& scanned,
                                                        const Subject* subject);

}  // namespace certify
