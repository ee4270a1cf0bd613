#include "certify/subject.h"

#include <ATen/Tensor.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "certify/compare_bits.h"
#include "certify/format.h"
#include "checkpoint/directory.h"

namespace certify {

void Subject::ReportLeftOut(Report& report) const {
  if (left_out == 0) return;
  report.Incomplete(Format("{} of {} tensors are left out by the pattern '{}'", left_out,
                           tensors().size(), only));
}

bool Subject::LacksOptimizerFiles() const {
  bool expected = false, present = false;
  for (const oracle::FileFact& fact : summary().files) {
    if (checkpoint::ParseFileName(fact.name).kind != checkpoint::FileKind::kOptimStates) continue;
    expected = expected || fact.expected;
    present = present || fact.present;
  }
  return expected && !present;
}

checkpoint::Status Subject::CheckAnySelected() const {
  const auto taken = std::find(selected.begin(), selected.end(), true);
  if (only.empty() || taken != selected.end()) return checkpoint::Done{};
  return checkpoint::Error{checkpoint::ErrorCode::kUsage,
                           Format("no tensor of {} matches '{}'", tensors().size(), only),
                           "a pattern that matches a whole name or a whole canonical name",
                           "--only", "See the names with `shardproof inspect`."};
}

checkpoint::Result<Subject> SelectSubject(std::shared_ptr<const oracle::Oracle> oracle,
                                          const std::string& only) {
  Subject subject;
  subject.oracle = std::move(oracle);
  subject.only = only;
  subject.selected.assign(subject.tensors().size(), true);
  if (only.empty()) return subject;
  for (size_t i = 0; i < subject.tensors().size(); ++i) {
    const oracle::TensorInfo& info = subject.tensors()[i];
    auto by_name = checkpoint::MatchesWhole(only, info.name);
    auto by_canonical = checkpoint::MatchesWhole(only, info.canonical);
    if (!by_name.ok() || !by_canonical.ok())
      return checkpoint::Error{checkpoint::ErrorCode::kUsage, Format("'{}'", only),
                               "a regular expression (RE2 syntax)", "--only",
                               "Write a pattern such as 'layers[.]3[.].*'."};
    subject.selected[i] = by_name.value() || by_canonical.value();
    if (!subject.selected[i] && info.alias_of.empty()) ++subject.left_out;
  }
  return subject;
}

checkpoint::Result<Subject> OpenSubject(const std::filesystem::path& path, const Declared& declared,
                                        const std::set<std::string>& leave_out) {
  oracle::OpenOptions options;
  options.tag = declared.tag;
  options.rules = declared.rules;
  options.qkv_layout = declared.qkv_layout;
  options.universal = declared.universal;
  options.leave_out = leave_out;
  CK_TRY(auto opened, oracle::Oracle::Open(path, options));
  CK_TRY(Subject subject, SelectSubject(std::move(opened), declared.only));
  subject.groups_declared = !declared.param_groups.empty();
  subject.declared_groups = declared.declared_groups;
  return subject;
}

std::string QkvOrderDoubt(const oracle::Summary& first, const oracle::Summary& second) {
  const bool declared = first.qkv_layout && second.qkv_layout;
  if (declared || first.tensor_parallel == second.tensor_parallel) return "";
  return Format(
      "TP changes from {} to {} and the row order of fused QKV is not declared; declare "
      "--qkv-layout or in --rules",
      first.tensor_parallel, second.tensor_parallel);
}

int64_t NumelOfShape(const std::vector<int64_t>& shape) {
  int64_t numel = 1;
  for (const int64_t extent : shape) numel *= extent;
  return numel;
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::vector<std::string> parts;
  for (const int64_t extent : shape) parts.push_back(std::to_string(extent));
  return JoinText(parts, ",");
}

bool IsSmallFloat(const at::Tensor& tensor) {
  const checkpoint::DType dtype = DTypeOf(tensor);
  return dtype == checkpoint::DType::kFloat32 || checkpoint::Is16Bit(dtype);
}

std::vector<std::string> StateOrder(const oracle::TensorInfo& info) {
  std::vector<std::string> order;
  for (const char* first : {oracle::kWeight, oracle::kMaster})
    if (info.states.count(first) > 0) order.emplace_back(first);
  for (const auto& [state, dtype] : info.states)
    if (state != oracle::kWeight && state != oracle::kMaster) order.push_back(state);
  return order;
}

int64_t LayerOf(const std::string& canonical) {
  constexpr std::string_view kPrefix = "layers.";
  if (canonical.compare(0, kPrefix.size(), kPrefix) != 0) return -1;
  int64_t layer = -1;
  const char* begin = canonical.data() + kPrefix.size();
  const char* end = canonical.data() + canonical.size();
  const auto parsed = std::from_chars(begin, end, layer);
  if (parsed.ec != std::errc() || parsed.ptr == end || *parsed.ptr != '.') return -1;
  return layer;
}

}  // namespace certify
