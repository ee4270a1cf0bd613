#include "certify/damage.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "certify/format.h"
#include "certify/json_text.h"
#include "checkpoint/file.h"
#include "checkpoint/zip_reader.h"
#include "checkpoint/zip_salvage.h"

namespace certify {
namespace {

using nlohmann::ordered_json;

// A damaged file: its records that are intact, and those that are not, with the reason.
struct FileDamage {
  std::string why;
  std::vector<std::string> intact;
  std::vector<std::pair<std::string, std::string>> lost;
};

std::string SumText(uint32_t found, uint32_t expected) {
  return Format("CRC-32 is {:08x}, written was {:08x}", found, expected);
}

void AddByDirectory(const checkpoint::MappedFile& file,
                    const std::vector<checkpoint::Record>& records, FileDamage& damage) {
  // All sums are 0 where none were written: nothing is proved then.
  const bool no_sums = std::all_of(records.begin(), records.end(),
                                   [](const auto& record) { return record.crc32 == 0; });
  for (const checkpoint::Record& record : records) {
    const uint32_t sum = checkpoint::Crc32OfRecord(file, record);
    if (no_sums) {
      damage.lost.emplace_back(record.name, "it carries no checksum: nothing proves it");
    } else if (sum == record.crc32) {
      damage.intact.push_back(record.name);
    } else {
      damage.lost.emplace_back(record.name, SumText(sum, record.crc32));
    }
  }
}

// Records of a file that cannot be opened: by its directory where that is whole, else by the
// headers in front of them.
checkpoint::Status SalvageRecords(const std::filesystem::path& path, FileDamage& damage) {
  CK_TRY(const auto mapped, checkpoint::MappedFile::Open(path));
  const auto index = checkpoint::ReadZipIndex(mapped->bytes(), path.string());
  if (index.ok()) {
    AddByDirectory(*mapped, index.value().records, damage);
    return checkpoint::Done{};
  }
  for (const checkpoint::SalvagedRecord& record : checkpoint::FindRecordsByHeaders(mapped->bytes()))
    if (record.whole) {
      damage.intact.push_back(record.name);
    } else {
      damage.lost.emplace_back(record.name,
                               record.payload_bytes < 0
                                   ? "cut: the file has no end of it"
                                   : "its bytes have another CRC-32 than its end says");
    }
  if (damage.intact.empty() && damage.lost.empty())
    damage.why += Format("; no record is left in its {} bytes", mapped->bytes().size());
  return checkpoint::Done{};
}

ordered_json FileJson(const std::string& name, const FileDamage& damage) {
  ordered_json json;
  json["name"] = name;
  json["why"] = damage.why;
  json["intact"] = damage.intact;
  json["lost"] = ordered_json::array();
  for (const auto& [record, why] : damage.lost)
    json["lost"].push_back({{"record", record}, {"why", why}});
  return json;
}

// Records whose sum differs, in a file that could be opened.
void AddBadRecords(const ScannedFile& file, const checkpoint::TorchFile* opened, BadRecords& bad,
                   FileDamage& damage) {
  damage.why =
      Format("{} of {} records have another CRC-32", file.bad_records.size(), file.records_checked);
  std::set<std::string> names;
  for (const BadRecord& record : file.bad_records) {
    bad.insert({file.digest.name, record.record});
    names.insert(record.record);
    damage.lost.emplace_back(record.record, SumText(record.found, record.expected));
  }
  if (opened == nullptr) return;
  for (const checkpoint::Record& record : opened->records)
    if (names.count(record.name) == 0) damage.intact.push_back(record.name);
}

const checkpoint::TorchFile* FindOpened(const Subject* subject, const std::filesystem::path& path) {
  if (subject == nullptr) return nullptr;
  for (const checkpoint::TorchFile& file : subject->oracle->torch_files())
    if (file.file->path().lexically_normal() == path.lexically_normal()) return &file;
  return nullptr;
}

struct Files {
  ordered_json damaged = ordered_json::array();
  BadRecords bad;
  std::set<std::string> unreadable;
};

checkpoint::Result<Files> AssessFiles(const std::vector<ListedFile>& listed,
                                      const std::vector<ScannedFile>& scanned,
                                      const Subject* subject) {
  Files files;
  for (const ScannedFile& file : scanned) {
    const auto place = std::find_if(listed.begin(), listed.end(), [&](const ListedFile& other) {
      return other.name == file.digest.name;
    });
    if (place == listed.end() || (!file.damage && file.bad_records.empty())) continue;
    FileDamage damage;
    if (file.damage) {
      damage.why = "cannot be opened: " + file.damage->found;
      files.unreadable.insert(file.digest.name);
      CK_DO(SalvageRecords(place->path, damage));
    } else {
      AddBadRecords(file, FindOpened(subject, place->path), files.bad, damage);
    }
    files.damaged.push_back(FileJson(file.digest.name, damage));
  }
  return files;
}

void AddMissingFiles(const Subject& subject, const Files& files, ordered_json& damaged) {
  for (const oracle::FileFact& fact : subject.summary().files) {
    const std::string name = subject.summary().tag + "/" + fact.name;
    if (!fact.expected || fact.present || files.unreadable.count(name) > 0) continue;
    FileDamage damage;
    damage.why = "is not there";
    damaged.push_back(FileJson(name, damage));
  }
}

}  // namespace

checkpoint::Result<ordered_json> AssessDamage(const std::filesystem::path& path,
                                              const Declared& declared,
                                              const std::vector<ScannedFile>& scanned,
                                              const Subject* subject) {
  CK_TRY(const auto listed, ListFiles(path, declared.tag, declared.universal));
  CK_TRY(Files files, AssessFiles(listed, scanned, subject));
  ordered_json json;
  std::optional<Subject> rest;
  if (subject == nullptr) {
    auto opened = OpenSubject(path, declared, files.unreadable);
    if (opened.ok()) {
      rest = std::move(opened).value();
      subject = &*rest;
    } else {
      json["note"] =
          "tensors were not looked at, without the damaged files: " + opened.error().ToString();
    }
  }
  json["tensors"] = ordered_json::array();
  if (subject != nullptr) {
    AddMissingFiles(*subject, files, files.damaged);
    if (files.damaged.empty()) return ordered_json();
    json["tensors"] = DamagedTensors(*subject, files.bad);
    json["note"] =
        "a file that cannot be opened or is missing counts as lost as a whole here, though records "
        "of it may be intact; tensors and states that no other file names are not listed";
  }
  json["files"] = std::move(files.damaged);
  return CleanText(json);
}

}  // namespace certify
