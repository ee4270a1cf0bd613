// certify/ without libtorch at start: late_certify.cc defines certify/certify.h's functions, which
// load libshardproof_judge.so on the first call and hand over to it. Tested by
// late_certify_test.cc.
#pragma once

#include <filesystem>

#include "certify/judge_module.h"
#include "checkpoint/status.h"

namespace cli {

// The module beside the program, else where it was built. Loaded once. Errors: kNotFound (no such
// file, or the loader refuses it), kInconsistent (of another build).
checkpoint::Result<const certify::JudgeTable*> LoadJudge();
// The same for one given file.
checkpoint::Result<const certify::JudgeTable*> LoadJudgeFrom(const std::filesystem::path& file);

}  // namespace cli
