// How a law collects what it finds and comes to its verdict. Internal to certify/. Tested by
// report_test.cc.
//
// The rule of the house: a fault makes the law broken; something needed that was not compared makes
// it undecided; nothing compared is never held. Findings come from several threads; the result does
// not depend on their order.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "certify/certify.h"
#include "oracle/oracle.h"

namespace certify {

// What a law is, what it covers and what not: the words of docs/LAWS.md, printed in every
// certificate.
struct LawText {
  std::string_view law, title, unit, covers, does_not_cover;
};
// REQUIRES: one of "S1".."S8", "R1".."R8", "V1".
const LawText& TextOf(std::string_view law);
std::vector<std::string_view> LawNumbers(char letter);

// "held", "broken", "undecided", "not applicable".
std::string_view VerdictName(Verdict verdict);

class Report {
 public:
  explicit Report(std::string_view law) : text_(TextOf(law)) {}

  // `count` more units were compared.
  void Compared(int64_t count);
  // `order` sorts findings (index of the tensor, usually); equal orders are sorted by content.
  void Add(Finding finding, int64_t order = 0);
  // Something needed was not compared. The first reason by text order is told, with the count of
  // the others.
  void Incomplete(std::string reason);
  // Nothing of the kind exists here. Overruled by faults and by Incomplete.
  void NotApplicable(std::string reason);
  // Findings above this per kind are only counted; 0: all are kept.
  void KeepPerKind(int64_t findings_max) { kept_per_kind_max_ = findings_max; }

  LawResult Finish();

 private:
  const LawText& text_;
  std::mutex mutex_;
  int64_t compared_ = 0;
  int64_t kept_per_kind_max_ = 20;
  std::vector<std::pair<int64_t, Finding>> findings_;
  std::vector<std::string> incomplete_;
  std::string not_applicable_;
};

// Fills file and rank of a finding from a place.
Finding WithPlace(Finding finding, const oracle::Place& place);
// What the oracle met while reading, as a finding; and the law that it belongs to by its kind: "S1"
// (whole files), "S3" (replicas), "S6" (counters), "S7" (groups), else "S2" (where elements lie).
Finding FindingOf(const oracle::Finding& met);
std::string_view LawOfKind(std::string_view kind);
// "0.003", "nan", "-inf": shortest text that names the float.
std::string NumberText(double value);
std::string JoinText(const std::vector<std::string>& parts, std::string_view separator);

}  // namespace certify
