// The names in a checkpoint folder. Knows the grammar of file names and which numbers stand in
// them; what a number means (data, tensor, pipeline rank) is for the rooms above. Format:
// docs/format/directory.md. Tested by directory_test.cc.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/status.h"

namespace checkpoint {

enum class FileKind {
  kModelStates,      // mp_rank_{mp}_model_states.pt
  kZeroModelStates,  // zero_pp_rank_{zero}_mp_rank_{mp}_model_states.pt   (ZeRO-3)
  kOptimStates,      // [bf16_|fp16_]zero_pp_rank_{zero}_mp_rank_{mp}[_]optim_states.pt
  kLayer,            // layer_{layer}[-model_{model}]-model_states.pt, also with the double dash
  kExpert,           // layer_{layer}_expert_{expert}_mp_rank_{mp}_model_states.pt and older forms
  kExpertOptim,      // expp_rank_{r}_mp_rank_{mp}_optim_states.pt
  kKnownOther,  // zero_to_fp32.py, latest, latest_universal, latest_checkpointed_iteration.txt, our
                // own *.shardproof.json
  kUnknown,
};

struct FileName {
  std::filesystem::path path;
  std::string name;
  FileKind kind = FileKind::kUnknown;
  int64_t zero_number = -1, mp_number = -1, layer_number = -1, model_number = -1,
          expert_number = -1;                             // -1: not in this name
  int digits_mp = 0, digits_layer = 0, digits_model = 0;  // width as written: "00" is 2
  std::string prefix;                                     // "", "bf16_", "fp16_" of kOptimStates
};

FileName ParseFileName(const std::filesystem::path& path);

struct StepFolder {
  std::filesystem::path run_folder;  // holds `latest`; equal to step_folder's parent
  std::filesystem::path step_folder;
  std::string tag;  // name of step_folder
  std::vector<FileName>
      files;  // regular files in step_folder, sorted by (kind, numbers as integers), then name
  bool universal = false;                         // has zero/<name>/fp32.pt
  std::vector<std::string> universal_parameters;  // folders below zero/, sorted bytewise
  std::vector<std::string> run_files;  // names beside the step folder in the run folder, if that
                                       // was given or has a `latest`
};

// `path` is a run folder (then `latest`, or `tag` where not empty, is followed) or a step folder. A
// run folder whose latest names a missing step is kMissingFile with the tags that exist; path
// tricks in a tag ("../x") are kNotACheckpoint.
Result<StepFolder> OpenStepFolder(const std::filesystem::path& path, const std::string& tag);

}  // namespace checkpoint
