// The entries of certify/ as a table that a program can load late. Loading libtorch takes longer
// than a small reshape, so the command line leaves it to the commands that judge. Used by
// cli/late_certify.cc; the table is in judge_module.cc, the only file of the module.
#pragma once

#include <cstddef>

#include "certify/certify.h"

namespace certify {

struct JudgeTable {
  // A table of another build must not be used: sizes of the types that cross, and the version.
  const char* version;
  size_t judgement_bytes, declared_bytes;
  decltype(&Check) check;
  decltype(&Certify) certify;
  decltype(&JudgementJson) judgement_json;
  decltype(&MakeCertificate) make_certificate;
  decltype(&CertificateHtml) certificate_html;
  decltype(&JudgementJUnit) judgement_junit;
  decltype(&VerifyCertificate) verify_certificate;
  decltype(&Digest) digest;
  decltype(&Inspect) inspect;
  decltype(&Compare) compare;
};

// Name and type of the only symbol that the module exports for use.
inline constexpr char kJudgeTableSymbol[] = "ShardproofJudgeTable";
using JudgeTableFunction = const JudgeTable* (*)();

}  // namespace certify
