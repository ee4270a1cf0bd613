#include "cli/late_certify.h"

#include <dlfcn.h>

#include <string_view>

namespace cli {

namespace {

using certify::JudgeTable;
using checkpoint::Error;
using checkpoint::ErrorCode;
using checkpoint::Result;

constexpr char kModuleName[] = "libshardproof_judge.so";

std::filesystem::path ModuleFile() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto beside = program.parent_path() / kModuleName;
  if (!error && std::filesystem::exists(beside, error)) return beside;
  return std::filesystem::path(SHARDPROOF_MODULE_DIR) / kModuleName;
}

// For functions that only take what a loaded module returned before.
const JudgeTable& Loaded() {
  const auto judge = LoadJudge();
  CHECK(judge.ok(), << judge.error().ToString());
  return *judge.value();
}

}  // namespace

Result<const JudgeTable*> LoadJudgeFrom(const std::filesystem::path& file) {
  // Local: the module brings its own copy of the rooms below, which must not mix with ours.
  void* module = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  const char* why = module == nullptr ? dlerror() : nullptr;
  if (module == nullptr) {
    return Error{ErrorCode::kNotFound, why == nullptr ? "no module" : why,
                 "the module that judges, with libtorch", file.string(),
                 "Keep it beside the program; libtorch must be where it was at build time."};
  }
  const auto function =
      reinterpret_cast<certify::JudgeTableFunction>(dlsym(module, certify::kJudgeTableSymbol));
  const JudgeTable* table = function == nullptr ? nullptr : function();
  const bool same = table != nullptr && std::string_view(table->version) == SHARDPROOF_VERSION &&
                    table->judgement_bytes == sizeof(certify::Judgement) &&
                    table->declared_bytes == sizeof(certify::Declared);
  if (same) return table;
  return Error{ErrorCode::kInconsistent, "a module of another build",
               "the module that was built with the program", file.string(),
               "Build both anew, or copy both."};
}

Result<const JudgeTable*> LoadJudge() {
  static const Result<const JudgeTable*> judge = LoadJudgeFrom(ModuleFile());
  return judge;
}

}  // namespace cli

namespace certify {

using checkpoint::Result;

Result<Judgement> Check(const std::filesystem::path& path, const Declared& declared) {
  CK_TRY(const JudgeTable* judge, cli::LoadJudge());
  return judge->check(path, declared);
}

Result<Judgement> Certify(const std::filesystem::path& source, const std::filesystem::path& target,
                          const Declared& source_declared, const Declared& target_declared) {
  CK_TRY(const JudgeTable* judge, cli::LoadJudge());
  return judge->certify(source, target, source_declared, target_declared);
}

nlohmann::ordered_json JudgementJson(const Judgement& judgement, bool certificate) {
  return cli::Loaded().judgement_json(judgement, certificate);
}

Result<nlohmann::ordered_json> MakeCertificate(const Judgement& judgement,
                                               const std::filesystem::path& source,
                                               const std::filesystem::path& target,
                                               const Declared& source_declared,
                                               const Declared& target_declared) {
  CK_TRY(const JudgeTable* judge, cli::LoadJudge());
  return judge->make_certificate(judgement, source, target, source_declared, target_declared);
}

std::string CertificateHtml(const nlohmann::ordered_json& certificate) {
  return cli::Loaded().certificate_html(certificate);
}

std::string JudgementJUnit(const Judgement& judgement, const std::string& suite) {
  return cli::Loaded().judgement_junit(judgement, suite);
}

Result<Judgement> VerifyCertificate(const nlohmann::ordered_json& certificate,
                                    const std::filesystem::path& source,
                                    const std::filesystem::path& target) {
  CK_TRY(const JudgeTable* judge, cli::LoadJudge());
  return judge->verify_certificate(certificate, source, target);
}

Result<nlohmann::ordered_json> Digest(const std::filesystem::path& path, const Declared& declared,
                                      const std::string& algorithm) {
  CK_TRY(const JudgeTable* judge, cli::LoadJudge());
  return judge->digest(path, declared, algorithm);
}

Result<nlohmann::ordered_json> Inspect(const std::filesystem::path& path,
                                       const Declared& declared) {
  CK_TRY(const JudgeTable* judge, cli::LoadJudge());
  return judge->inspect(path, declared);
}

Result<nlohmann::ordered_json> Compare(const std::filesystem::path& a,
                                       const std::filesystem::path& b, const Declared& a_declared,
                                       const Declared& b_declared) {
  CK_TRY(const JudgeTable* judge, cli::LoadJudge());
  return judge->compare(a, b, a_declared, b_declared);
}

}  // namespace certify
