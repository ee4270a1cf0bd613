#include "reshape/inventory.h"

#include <utility>

#include "checkpoint/tree.h"
#include "reshape/source.h"

namespace reshape {
namespace {

using checkpoint::Result;
using checkpoint::Status;

Status ReadGroups(Source& source) {
  switch (source.inventory.wrapper) {
    case Wrapper::kNone:
      source.named =
          source.inventory.layout == NameLayout::kPlain;  // no group, so none without names
      return checkpoint::Done{};
    case Wrapper::kFp32:
    case Wrapper::kUnfused:
      return ReadUnfusedGroups(source);
    case Wrapper::kFused:
      return ReadFlatGroups(source);
    case Wrapper::kZero:
    case Wrapper::kBf16:
      return ReadPartitions(source);
    case Wrapper::kUniversal:
      return ReadUniversal(source);
  }
  return checkpoint::Done{};
}

// No file of a stage-0 pipeline names the key of a tied layer: the usual one is used, which a
// reader of the files must know.
void NoticeAssumedKeys(const StageCuts& cuts, Source& source) {
  if (source.builtin_rules) return;
  for (const auto& [key, tied] : cuts.tied) {
    source.Notify(
        "tied-key-assumed",
        "layer " + std::to_string(tied.layers.front()) +
            " is tied between stages; no file says under which key, so it is named tied_modules." +
            key + ".",
        {"tied_modules." + key});
  }
}

// Modules and names of groups. Where the stages must be guessed, the first guess that the content
// proves is the one.
Status ReadModulesAndNames(Source& source) {
  if (source.inventory.layout == NameLayout::kPlain) {
    CK_DO(ReadPlainModules(source));
    return NameGroups(source);
  }
  if (source.named) {
    CK_TRY(const StageCuts cuts, StageCutsFromNames(source));
    CK_DO(ReadPipelineModules(cuts, source));
    return NameGroups(source);
  }
  CK_TRY(const std::vector<StageCuts> guesses, FindStageCuts(source));
  const std::vector<Notice> notices = source.inventory.notices;
  std::optional<checkpoint::Error> first_error;
  for (const StageCuts& guess : guesses) {
    source.inventory.notices = notices;
    source.stale_names.clear();
    CK_DO(ReadPipelineModules(guess, source));
    Status status = NameGroups(source);
    if (status.ok()) {
      NoticeAssumedKeys(guess, source);
      return status;
    }
    if (!first_error) first_error = status.error();
  }
  return *first_error;
}

// BF16_Optimizer without ZeRO writes its dictionary into the model file as well.
Status CheckModelOptimizerCopy(const Source& source) {
  const Inventory& inventory = source.inventory;
  if (!inventory.bf16_model_optimizer_copy) return checkpoint::Done{};
  for (size_t i = 0; i < inventory.model_files.size(); ++i) {
    const auto copy = checkpoint::Get(inventory.model_files[i].torch.root, "optimizer");
    const auto original =
        checkpoint::Get(inventory.optim_files[i].front().torch.root, "optimizer_state_dict");
    if (checkpoint::SameStructure(copy, original)) continue;
    return MakeError(
        checkpoint::ErrorCode::kInconsistent,
        "an optimizer in " + inventory.model_files[i].name.name,
        "the same keys, numbers and sizes as in " + inventory.optim_files[i].front().name.name,
        inventory.model_files[i].name.path.string(),
        "Model and optimizer files are not of one step.");
  }
  return checkpoint::Done{};
}

}  // namespace

Result<Inventory> ReadInventory(const std::filesystem::path& path, const ReadOptions& options) {
  Source source;
  CK_TRY(source.inventory.folder, checkpoint::OpenStepFolder(path, options.tag));
  CK_DO(ReadSourceFiles(source));
  CK_DO(CheckOneStep(source.inventory));
  CK_DO(CheckModelOptimizerCopy(source));
  CK_DO(ReadGroups(source));
  CK_DO(CheckOneOptimizerStep(source));
  CK_DO(ChooseRules(options, source));
  CK_DO(ReadModulesAndNames(source));
  CK_DO(Assemble(options, source));
  CK_DO(CheckReplicatedWeights(source));
  return std::move(source.inventory);
}

}  // namespace reshape
