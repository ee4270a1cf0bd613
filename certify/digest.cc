// A digest a logical tensor and state, and one of the whole, that no topology, stage or layout
// changes.
#include <ATen/Parallel.h>
#include <ATen/Tensor.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "certify/certify.h"
#include "certify/compare_bits.h"
#include "certify/format.h"
#include "certify/hash.h"
#include "certify/json_text.h"
#include "certify/parallel.h"
#include "certify/subject.h"
#include "certify/whole_files.h"

namespace certify {
namespace {

using checkpoint::Error;
using checkpoint::ErrorCode;
using nlohmann::ordered_json;

constexpr int64_t kBytesPerElement = 8;

struct StateDigest {
  std::string state, hex, line;
};

// The state without vocabulary padding rows.
at::Tensor WithoutPadding(const oracle::TensorInfo& info, const at::Tensor& value) {
  if (info.vocabulary_rows < 0 || value.dim() == 0 || info.vocabulary_rows >= value.size(0))
    return value;
  return value.narrow(0, 0, info.vocabulary_rows);
}

checkpoint::Result<StateDigest> DigestState(const Subject& subject, size_t index,
                                            const std::string& state, HashAlgorithm algorithm) {
  const oracle::TensorInfo& info = subject.tensors()[index];
  CK_TRY(const oracle::Assembled assembled, subject.oracle->Assemble(index, state));
  const int64_t missing = assembled.value.numel() - assembled.covered;
  if (missing != 0)
    return Error{
        ErrorCode::kMissingFile,
        Format("{} of {} elements of {} in no file", missing, assembled.value.numel(), state),
        "every element", info.name,
        "See `shardproof check`: a file is missing or a partition is too short."};
  // Narrowing the first dimension leaves a contiguous tensor.
  const at::Tensor value = WithoutPadding(info, assembled.value);
  const ElementBytesView bytes = BytesOf(value);
  StateDigest digest;
  digest.state = state;
  digest.hex =
      HashHex(algorithm, std::span<const std::byte>(bytes.begin, static_cast<size_t>(bytes.bytes)));
  digest.line =
      Format("{} {} {} {} {}\n", info.canonical, state, checkpoint::DTypeName(DTypeOf(value)),
             ShapeText(value.sizes().vec()), digest.hex);
  return digest;
}

ordered_json TensorJson(const oracle::TensorInfo& info, const std::vector<StateDigest>& digests) {
  ordered_json json;
  for (const StateDigest& digest : digests) json[digest.state] = digest.hex;
  json["canonical"] = info.canonical;
  return json;
}

// Tensors whose digest stands on an assumed row order: their shards were put together one after
// the other because no order is declared.
std::vector<WholeNotice> AssumedOrder(const Subject& subject) {
  const oracle::Summary& summary = subject.summary();
  if (summary.qkv_layout || QkvShards(summary) == 1) return {};
  WholeNotice notice{"qkv-order-assumed", "", {}};
  for (size_t i = 0; i < subject.tensors().size(); ++i)
    if (subject.selected[i] && subject.tensors()[i].fused_qkv)
      notice.names.push_back(subject.tensors()[i].name);
  if (notice.names.empty()) return {};
  notice.text = Format(
      "the digests of {} tensors, and the one of all, take rows of fused QKV in the order of the "
      "{} "
      "tensor ranks; no order is declared, and another TP has these digests only where that is "
      "right: declare --qkv-layout or in --rules",
      notice.names.size(), summary.tensor_parallel);
  return {notice};
}

// What the digest of all is called: that of a part must not be taken for that of the whole.
const char* WholeKey(const Declared& declared, bool complete) {
  if (!complete) return "whole_of_what_is_there";
  return declared.only.empty() ? "whole" : "whole_of_selection";
}

using DigestsOfTensors = std::vector<std::vector<StateDigest>>;

checkpoint::Status DigestTensors(const Subject& subject, HashAlgorithm algorithm, int32_t threads,
                                 DigestsOfTensors& digests) {
  digests.resize(subject.tensors().size());
  ParallelOptions parallel;
  parallel.threads = threads;
  parallel.bytes_of = [&](int64_t item) {
    return kBytesPerElement * NumelOfShape(subject.tensors()[static_cast<size_t>(item)].shape);
  };
  return ParallelFor(static_cast<int64_t>(digests.size()), parallel,
                     [&](int64_t item) -> checkpoint::Status {
                       const auto index = static_cast<size_t>(item);
                       if (!subject.IsJudged(index)) return checkpoint::Done{};
                       for (const std::string& state : StateOrder(subject.tensors()[index])) {
                         CK_TRY(StateDigest digest, DigestState(subject, index, state, algorithm));
                         digests[index].push_back(std::move(digest));
                       }
                       return checkpoint::Done{};
                     });
}

ordered_json DigestJson(const Subject& subject, const DigestsOfTensors& digests,
                        const Declared& declared, HashAlgorithm algorithm) {
  std::map<std::string, size_t> by_name;
  for (size_t i = 0; i < subject.tensors().size(); ++i)
    by_name.emplace(subject.tensors()[i].name, i);
  ordered_json json;
  json["algorithm"] = HashAlgorithmName(algorithm);
  json["tensors"] = ordered_json::object();
  std::vector<std::string> lines;
  for (size_t i = 0; i < subject.tensors().size(); ++i) {
    if (!subject.selected[i]) continue;
    const oracle::TensorInfo& info = subject.tensors()[i];
    const auto real = by_name.find(info.alias_of);
    const size_t held_by = info.alias_of.empty() || real == by_name.end() ? i : real->second;
    json["tensors"][info.name] = TensorJson(info, digests[held_by]);
    for (const StateDigest& digest : digests[i]) lines.push_back(digest.line);
  }
  std::sort(lines.begin(), lines.end());
  const std::vector<WholeNotice> missing = WhatIsMissing(subject);
  json["complete"] = missing.empty();
  json[WholeKey(declared, missing.empty())] = HashHex(algorithm, JoinText(lines, ""));
  json["notices"] = ordered_json::array();
  for (const auto& notices : {missing, AssumedOrder(subject), UnprovedFiles(subject)})
    for (const WholeNotice& notice : notices)
      json["notices"].push_back(
          {{"kind", notice.kind}, {"text", notice.text}, {"names", notice.names}});
  return CleanText(json);
}

}  // namespace

checkpoint::Result<ordered_json> Digest(const std::filesystem::path& path, const Declared& declared,
                                        const std::string& algorithm_name) {
  at::set_num_threads(1);
  const auto algorithm = HashAlgorithmFromName(algorithm_name);
  if (!algorithm)
    return Error{ErrorCode::kUsage, "'" + algorithm_name + "'", "xxh3-128 or sha256", "--algorithm",
                 "Name one of the two."};
  CK_TRY(const Subject subject, OpenSubject(path, declared));
  CK_DO(subject.CheckAnySelected());
  CK_DO(CheckRecordSums(subject, declared.threads));
  DigestsOfTensors digests;
  CK_DO(DigestTensors(subject, *algorithm, declared.threads, digests));
  return DigestJson(subject, digests, declared, *algorithm);
}

}  // namespace certify
