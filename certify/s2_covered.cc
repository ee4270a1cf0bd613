// Law S2, covered. Covers: every element of every state of every logical tensor is held by exactly
// one piece, replicas aside; alignment padding to the element. Does not cover: values.
#include <ATen/Tensor.h>

#include "certify/format.h"
#include "certify/single_laws.h"

namespace certify {
namespace {

Finding AboutState(const oracle::TensorInfo& info, const std::string& state, std::string kind) {
  Finding finding;
  finding.fault = true;
  finding.kind = std::move(kind);
  finding.tensor = info.name;
  finding.state = state;
  return finding;
}

void CheckPadding(const oracle::PaddingAccount& account, Report& report) {
  Finding finding;
  finding.fault = true;
  finding.count = account.nonzero;
  if (!account.problem.empty()) {
    finding.kind = "padding-account";
    finding.text = Format(
        "group {}: {} elements are stored for {} real ones, {} of alignment padding are right: {}",
        account.group, account.stored_numel, account.real_numel, account.expected_padding,
        account.problem);
    report.Add(WithPlace(finding, account.place), account.group);
  }
  if (account.nonzero > 0) {
    finding.kind = "padding-not-zero";
    finding.text =
        Format("group {}: {} elements of alignment padding are not zero: something else lies there",
               account.group, account.nonzero);
    report.Add(WithPlace(finding, account.place), account.group);
  }
}

}  // namespace

void Covered::Visit(size_t index, const std::string& state, const oracle::Assembled& assembled) {
  const oracle::TensorInfo& info = subject_.tensors()[index];
  const auto order = static_cast<int64_t>(index);
  const int64_t numel = NumelOfShape(info.shape);
  report_.Compared(numel);
  if (assembled.value.sizes() != at::IntArrayRef(info.shape)) {
    Finding finding = AboutState(info, state, "wrong-shape");
    finding.text = Format("{} of {} has shape ({}), expected ({})", state, info.name,
                          ShapeText(assembled.value.sizes().vec()), ShapeText(info.shape));
    report_.Add(std::move(finding), order);
    return;
  }
  if (assembled.covered != numel) {
    Finding finding = AboutState(info, state, "not-covered");
    finding.count = numel - assembled.covered;
    finding.text = Format("{} of {}: {} of {} elements are in no file", state, info.name,
                          finding.count, numel);
    report_.Add(std::move(finding), order);
  }
  if (assembled.held_twice != 0) {
    Finding finding = AboutState(info, state, "held-twice");
    finding.count = assembled.held_twice;
    finding.text = Format("{} of {}: {} elements are held by two pieces that are no replicas",
                          state, info.name, finding.count);
    report_.Add(std::move(finding), order);
  }
}

void Covered::CannotAssemble(size_t index, const std::string& state,
                             const checkpoint::Error& error) {
  const oracle::TensorInfo& info = subject_.tensors()[index];
  Finding finding = AboutState(info, state, "cannot-assemble");
  finding.count = NumelOfShape(info.shape);
  finding.text = Format("{} of {} cannot be put together: {}", state, info.name, error.ToString());
  report_.Add(std::move(finding), static_cast<int64_t>(index));
}

LawResult Covered::Finish() {
  subject_.ReportLeftOut(report_);
  for (const oracle::PaddingAccount& account : subject_.summary().padding)
    CheckPadding(account, report_);
  for (const oracle::Finding& met : subject_.summary().findings) {
    if (LawOfKind(met.kind) != "S2") continue;
    Finding finding = FindingOf(met);
    // Masters that round to no weight leave an order unproved: that is S4's fault. What cannot be
    // named at all is uncovered, and counted as such.
    if (finding.kind == "order-unproved") finding.fault = false;
    report_.Add(std::move(finding), -1);
  }
  return report_.Finish();
}

}  // namespace certify
