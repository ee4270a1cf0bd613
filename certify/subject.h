// A checkpoint under judgement: its oracle, and which of its tensors are looked at. Internal to
// certify/. Tested by subject_test.cc.
#pragma once

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "certify/certify.h"
#include "certify/report.h"
#include "oracle/oracle.h"

namespace certify {

struct Subject {
  std::shared_ptr<const oracle::Oracle> oracle;
  std::vector<bool> selected;  // one a tensor: not left out by `only`
  int64_t left_out = 0;        // tensors that `only` leaves out, aliases aside
  std::string only;
  bool groups_declared = false;       // hyper-parameters that the files lack were given
  checkpoint::Value declared_groups;  // as Declared

  const oracle::Summary& summary() const { return oracle->summary(); }
  const std::vector<oracle::TensorInfo>& tensors() const { return oracle->tensors(); }
  // Errors: kUsage where `only` leaves nothing of the tensors.
  checkpoint::Status CheckAnySelected() const;
  // The topology needs optimizer files, and not one of them is there.
  bool LacksOptimizerFiles() const;
  // Not an alias and not left out.
  bool IsJudged(size_t index) const { return selected[index] && tensors()[index].alias_of.empty(); }
  // Tells a law that looks at elements what `only` leaves out.
  void ReportLeftOut(Report& report) const;
};

// `leave_out`: files, relative to the run folder, to be taken for missing. Errors: those of
// Oracle::Open; kUsage where `only` is no pattern.
checkpoint::Result<Subject> OpenSubject(const std::filesystem::path& path, const Declared& declared,
                                        const std::set<std::string>& leave_out = {});
// `only`: a pattern that matches the whole name or the whole canonical name; empty: all. Errors:
// kUsage where it is no pattern.
checkpoint::Result<Subject> SelectSubject(std::shared_ptr<const oracle::Oracle> oracle,
                                          const std::string& only);

// Where TP differs and the row order of fused QKV is not declared, nothing tells which rows are the
// same: what to say of it, empty where there is no such doubt. It concerns tensors of `fused_qkv`.
std::string QkvOrderDoubt(const oracle::Summary& first, const oracle::Summary& second);

int64_t NumelOfShape(const std::vector<int64_t>& shape);
// "101,32"; "" for a 0-d tensor.
std::string ShapeText(const std::vector<int64_t>& shape);
// float32, float16 or bfloat16: what the comparisons of values understand.
bool IsSmallFloat(const at::Tensor& tensor);
// States in the order they are assembled: weight, fp32_master, then the others by name.
std::vector<std::string> StateOrder(const oracle::TensorInfo& info);
// Transformer layer of a canonical name: 3 for "layers.3.mlp.dense_h_to_4h.weight"; -1 for others.
int64_t LayerOf(const std::string& canonical);

}  // namespace certify
