#include "certify/judge_module.h"

extern "C" const certify::JudgeTable* ShardproofJudgeTable() {
  static const certify::JudgeTable table{SHARDPROOF_VERSION,        sizeof(certify::Judgement),
                                         sizeof(certify::Declared), &certify::Check,
                                         &certify::Certify,         &certify::JudgementJson,
                                         &certify::MakeCertificate, &certify::CertificateHtml,
                                         &certify::JudgementJUnit,  &certify::VerifyCertificate,
                                         &certify::Digest,          &certify::Inspect,
                                         &certify::Compare};
  return &table;
}
