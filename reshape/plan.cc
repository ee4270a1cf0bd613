#include "reshape/plan.h"

#include <algorithm>
#include <map>
#include <span>
#include <unordered_map>

#include "checkpoint/tensor.h"
#include "reshape/convert.h"

namespace reshape {
namespace {

using checkpoint::Error;
using checkpoint::ErrorCode;
using checkpoint::Result;
using checkpoint::Status;
using checkpoint::Storage;

// A block of a source state, with what the search needs.
struct SourceBlock {
  Block block;
  LinearSpan span;
  const Storage* storage = nullptr;
};

// All blocks of one state of one tensor, ascending by span.first; `reach` is the largest span.last
// so far, so that a search knows when to stop.
struct SourceState {
  std::vector<SourceBlock> blocks;
  std::vector<int64_t> reach;
};

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

std::string StateName(const LogicalTensor& tensor, const std::string& state, bool stale) {
  return tensor.name + " " + state + (stale ? " (copy on the last stage)" : "");
}

bool InBounds(const Block& block, const std::vector<int64_t>& shape, const Storage& storage) {
  int64_t last = block.offset;
  for (size_t i = 0; i < block.start.size(); ++i) {
    if (block.strides[i] < 0 || block.start[i] < 0 || block.start[i] + block.extent[i] > shape[i])
      return false;
    last += (block.extent[i] - 1) * block.strides[i];
  }
  return block.offset >= 0 && last < storage.numel;
}

Error Overlap(const LogicalTensor& tensor, const std::string& where) {
  return {ErrorCode::kInconsistent, "two pieces that hold the same elements of " + tensor.name,
          "every element in one piece", where,
          "The source is inconsistent; run `shardproof check` on it."};
}

// Every element exactly once: the blocks do not meet, and together they have as many elements as
// the tensor.
Status CheckOnceEach(const LogicalTensor& tensor, const SourceState& state,
                     const std::string& where) {
  int64_t numel = 0, expected = 1;
  for (const int64_t extent : tensor.shape) expected *= extent;
  for (size_t i = 0; i < state.blocks.size(); ++i) {
    numel += state.blocks[i].block.numel();
    for (size_t j = i; j-- > 0 && state.reach[j] >= state.blocks[i].span.first;) {
      if (Intersect(state.blocks[j].block, state.blocks[i].block)) return Overlap(tensor, where);
    }
  }
  if (numel == expected) return checkpoint::Done{};
  return Error{ErrorCode::kInconsistent, std::to_string(numel) + " elements in the files",
               std::to_string(expected) + " elements, shape " + ShapeText(tensor.shape), where,
               "The source is incomplete; run `shardproof check` on it."};
}

Result<SourceState> IndexState(const LogicalTensor& tensor, const StatePieces& pieces,
                               const std::string& where) {
  SourceState state;
  for (const Piece& piece : pieces.pieces) {
    for (Block& block : BlocksOf(piece)) {
      if (!InBounds(block, tensor.shape, *piece.storage)) {
        return Error{ErrorCode::kInconsistent, "a piece that leaves its tensor or its storage",
                     "pieces inside both", where,
                     "The source is inconsistent; run `shardproof check` on it."};
      }
      const LinearSpan span = SpanOf(block, tensor.shape);
      state.blocks.push_back({std::move(block), span, piece.storage.get()});
    }
  }
  std::sort(state.blocks.begin(), state.blocks.end(),
            [](const SourceBlock& a, const SourceBlock& b) { return a.span.first < b.span.first; });
  int64_t reach = -1;
  for (const SourceBlock& block : state.blocks)
    state.reach.push_back(reach = std::max(reach, block.span.last));
  CK_DO(CheckOnceEach(tensor, state, where));
  return state;
}

class Composer {
 public:
  Composer(const Inventory& source, const Target& target) : source_(source), target_(target) {}

  Result<Plan> Compose() {
    LayOutFiles();
    for (const Placement& placement : target_.placements) CK_DO(Place(placement));
    for (const Literal& literal : target_.literals) {
      const auto home = homes_.find(literal.storage.get());
      CHECK(home != homes_.end(), << "a literal whose storage is in no file");
      CHECK(static_cast<int64_t>(literal.bytes.size()) == literal.storage->bytes(),
            << literal.bytes.size());
      for (StoragePlan* storage : home->second) storage->literal = literal.bytes;
    }
    CK_DO(CopyWholeFiles());
    for (FilePlan& file : plan_.files) {
      for (StoragePlan& storage : file.storages) CloseStorage(storage);
      plan_.bytes += file.bytes;
    }
    plan_.digest = DigestOf(plan_);
    for (const LogicalTensor& tensor : source_.tensors) plan_.tensor_names.push_back(tensor.name);
    return std::move(plan_);
  }

 private:
  void LayOutFiles() {
    plan_.files.reserve(target_.files.size());
    for (const TargetFile& target_file : target_.files) {
      FilePlan file;
      file.path = target_file.path;
      file.copied_from = target_file.copied_from;
      if (file.copied_from.empty()) {
        const std::string stem = std::filesystem::path(file.path).stem().string();
        file.layout = checkpoint::TorchFileLayout::Plan(target_file.root,
                                                        checkpoint::StringMemo::kByContent, stem);
        file.bytes = file.layout.file_bytes();
      }
      plan_.files.push_back(std::move(file));
      AddStorages(plan_.files.back());
    }
  }

  void AddStorages(FilePlan& file) {
    file.storages.resize(file.layout.storages().size());
    for (size_t i = 0; i < file.storages.size(); ++i) {
      const Storage* storage = file.layout.storages()[i].get();
      file.storages[i].target = storage;
      if (storage->file == nullptr) {
        // A storage may stand in two files (a second optimizer dictionary): each file gets its own
        // copy.
        homes_[storage].push_back(&file.storages[i]);
        continue;
      }
      CopyRange whole{storage, {}, 1, -1};
      whole.block.dimensions = {{storage->numel, 1, 1}};
      if (storage->numel > 0) file.storages[i].copies.push_back(std::move(whole));
    }
  }

  Result<const SourceState*> StateOf(const Placement& placement) {
    const LogicalTensor& tensor = source_.tensors[static_cast<size_t>(placement.tensor)];
    const auto key =
        std::make_pair(std::make_pair(placement.tensor, placement.stale), placement.state);
    const auto known = states_.find(key);
    if (known != states_.end()) return &known->second;
    const auto& states = placement.stale ? tensor.stale_states : tensor.states;
    const std::string where = StateName(tensor, placement.state, placement.stale);
    const auto found = states.find(placement.state);
    if (found == states.end()) {
      return Error{ErrorCode::kMissingFile, "no " + placement.state + " of " + tensor.name,
                   "a state that the target needs", where,
                   "The source does not hold it; choose a target that does not need it."};
    }
    CK_TRY(SourceState state, IndexState(tensor, found->second, where));
    return &states_.emplace(key, std::move(state)).first->second;
  }

  Status Place(const Placement& placement) {
    const LogicalTensor& tensor = source_.tensors[static_cast<size_t>(placement.tensor)];
    const auto home = homes_.find(placement.target.storage.get());
    CHECK(home != homes_.end(), << "a placement of " << tensor.name
                                << " whose storage is in no file");
    CK_TRY(const SourceState* state, StateOf(placement));
    CHECK(CanConvert(placement.source_dtype, placement.target.storage->dtype), << tensor.name);
    for (const Block& block : BlocksOf(placement.target)) {
      std::vector<CopyRange> copies;
      const int64_t covered = Overlaps(*state, block, tensor, copies);
      CHECK(covered == WithinShape(block, tensor.shape),
            << tensor.name << " covered " << covered << " of " << block.numel());
      for (StoragePlan* storage : home->second) {
        for (CopyRange& copy : copies) {
          copy.factor = placement.factor;
          copy.tensor = placement.tensor;
          storage->copies.push_back(copy);
        }
      }
    }
    return checkpoint::Done{};
  }

  // The copies that fill a target block; returns how many of its elements they fill.
  static int64_t Overlaps(const SourceState& state, const Block& block, const LogicalTensor& tensor,
                          std::vector<CopyRange>& copies) {
    const LinearSpan span = SpanOf(block, tensor.shape);
    auto begin =
        std::lower_bound(state.reach.begin(), state.reach.end(), span.first) - state.reach.begin();
    int64_t covered = 0;
    for (size_t i = static_cast<size_t>(begin);
         i < state.blocks.size() && state.blocks[i].span.first <= span.last; ++i) {
      std::optional<CommonBlock> common = Intersect(state.blocks[i].block, block);
      if (!common) continue;
      covered += common->numel();
      copies.push_back({state.blocks[i].storage, std::move(*common), 1, -1});
    }
    return covered;
  }

  static int64_t WithinShape(const Block& block, const std::vector<int64_t>& shape) {
    int64_t numel = 1;
    for (size_t i = 0; i < shape.size(); ++i) {
      numel *= std::max<int64_t>(
          0, std::min(shape[i], block.start[i] + block.extent[i]) - block.start[i]);
    }
    return numel;
  }

  Status CopyWholeFiles() {
    for (FilePlan& file : plan_.files) {
      if (file.copied_from.empty()) continue;
      std::error_code error;
      file.bytes = static_cast<int64_t>(std::filesystem::file_size(file.copied_from, error));
      if (error) {
        return Error{ErrorCode::kIo, error.message(), "a file to copy", file.copied_from.string(),
                     "Check that the source is not being changed while it is read."};
      }
    }
    return checkpoint::Done{};
  }

  // Sorts the copies and proves that no two of them write one element.
  void CloseStorage(StoragePlan& storage) {
    plan_.copies += static_cast<int64_t>(storage.copies.size());
    if (!storage.literal.empty()) {
      CHECK(storage.copies.empty(), << "a literal that is also copied");
      return;
    }
    std::sort(storage.copies.begin(), storage.copies.end(),
              [](const CopyRange& a, const CopyRange& b) {
                return a.block.target_offset < b.block.target_offset;
              });
    int64_t written = 0, reach = -1;
    size_t cluster = 0;  // first of the copies whose target spans meet: columns side by side
    for (size_t i = 0; i < storage.copies.size(); ++i) {
      const CopyRange& copy = storage.copies[i];
      int64_t last = copy.block.target_offset, source_last = copy.block.source_offset;
      for (const CopyDimension& dimension : copy.block.dimensions) {
        last += (dimension.extent - 1) * dimension.target_stride;
        source_last += (dimension.extent - 1) * dimension.source_stride;
      }
      CHECK(source_last < copy.source->numel,
            << "reads element " << source_last << " of " << copy.source->numel);
      CHECK(last < storage.target->numel,
            << "writes element " << last << " of " << storage.target->numel);
      if (copy.block.target_offset > reach) {
        CheckRuns(std::span(storage.copies).subspan(cluster, i - cluster));
        cluster = i;
      }
      reach = std::max(reach, last);
      written += copy.block.numel();
    }
    CheckRuns(std::span(storage.copies).subspan(cluster));
    CHECK(written <= storage.target->numel, << written << " of " << storage.target->numel);
    storage.zero_numel = storage.target->numel - written;
  }

  // Row splits interleave: each copy fills some columns of rows of equal length. True where that is
  // so and no two copies share a column, which is enough; false says nothing.
  static bool FillDifferentColumns(std::span<const CopyRange> copies) {
    int64_t row = 0;
    for (const CopyRange& copy : copies)
      if (copy.block.dimensions.size() == 2) row = copy.block.dimensions[0].target_stride;
    if (row <= 0) return false;
    std::vector<std::pair<int64_t, int64_t>> columns;
    for (const CopyRange& copy : copies) {
      const auto& dimensions = copy.block.dimensions;
      if (dimensions.empty() || dimensions.size() > 2 || dimensions.back().target_stride != 1 ||
          dimensions.front().target_stride != (dimensions.size() == 2 ? row : 1))
        return false;
      const int64_t first = copy.block.target_offset % row;
      if (first + dimensions.back().extent > row) return false;
      columns.emplace_back(first, first + dimensions.back().extent);
    }
    std::sort(columns.begin(), columns.end());
    for (size_t i = 1; i < columns.size(); ++i)
      if (columns[i].first < columns[i - 1].second) return false;
    return true;
  }

  // The runs of these copies, sorted, must not meet.
  static void CheckRuns(std::span<const CopyRange> copies) {
    if (copies.size() < 2 || FillDifferentColumns(copies)) return;
    struct Run {
      int64_t first, last;
    };
    std::vector<Run> runs;
    for (const CopyRange& copy : copies) {
      const auto& dimensions = copy.block.dimensions;
      const bool contiguous = !dimensions.empty() && dimensions.back().target_stride == 1;
      const int64_t run_numel = contiguous ? dimensions.back().extent : 1;
      const int64_t count = copy.block.numel() / run_numel;
      for (int64_t i = 0; i < count; ++i) {
        int64_t first = copy.block.target_offset, rest = i;
        for (size_t d = dimensions.size() - (contiguous ? 1 : 0); d-- > 0;) {
          first += rest % dimensions[d].extent * dimensions[d].target_stride;
          rest /= dimensions[d].extent;
        }
        runs.push_back({first, first + run_numel - 1});
      }
    }
    std::sort(runs.begin(), runs.end(),
              [](const Run& a, const Run& b) { return a.first < b.first; });
    for (size_t i = 1; i < runs.size(); ++i) {
      CHECK(runs[i - 1].last < runs[i].first,
            << "element " << runs[i].first << " is written twice");
    }
  }

  static uint32_t DigestOf(const Plan& plan);

  const Inventory& source_;
  const Target& target_;
  Plan plan_;
  std::unordered_map<const Storage*, std::vector<StoragePlan*>> homes_;
  std::map<std::pair<std::pair<int32_t, bool>, std::string>, SourceState> states_;
};

void Add(uint32_t& digest, const std::string& text) {
  digest = checkpoint::Crc32(digest, std::as_bytes(std::span(text.data(), text.size())));
}

uint32_t Composer::DigestOf(const Plan& plan) {
  uint32_t digest = 0;
  for (const FilePlan& file : plan.files) {
    Add(digest, file.path + "|" + file.copied_from.string() + "|" + std::to_string(file.bytes));
    for (const StoragePlan& storage : file.storages) {
      Add(digest, storage.literal + "|" + std::to_string(storage.target->numel));
      for (const CopyRange& copy : storage.copies) {
        std::string text = copy.source->file == nullptr ? "" : copy.source->file->path().string();
        for (const int64_t number :
             {copy.source->file_offset, copy.block.source_offset, copy.block.target_offset}) {
          text += " " + std::to_string(number);
        }
        for (const CopyDimension& dimension : copy.block.dimensions)
          text += " " + std::to_string(dimension.extent);
        Add(digest, text + " " + std::to_string(copy.factor));
      }
    }
  }
  return digest;
}

}  // namespace

Result<Plan> ComposePlan(const Inventory& source, const Target& target) {
  return Composer(source, target).Compose();
}

}  // namespace reshape
