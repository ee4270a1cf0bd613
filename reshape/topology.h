// Ranks, topologies and stages as types. Every kind of rank is its own type, so that arithmetic on
// them is confined to the layout files.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace reshape {

enum class TensorRank : int32_t {};
enum class PipelineStage : int32_t {};
enum class DataRank : int32_t {};

struct ShardCoordinate {
  TensorRank tensor_rank{0};
  PipelineStage pipeline_stage{0};
  DataRank data_rank{0};
  auto operator<=>(const ShardCoordinate&) const = default;
};

struct Topology {
  int32_t tensor_parallel_size = 1;
  int32_t pipeline_parallel_size = 1;
  int32_t data_parallel_size = 1;
  int32_t zero_stage = 0;
  bool operator==(const Topology&) const = default;
};

// Where the optimizer state lives and in which form. Format: docs/format/optimizer.md.
enum class Wrapper {
  kNone,       // no optimizer state in the checkpoint at all (weights only)
  kFp32,       // bare torch optimizer, fp32 stage 0: per parameter, in the model file
  kFused,      // FP16_Optimizer, stage 0: nameless flat groups in the model file
  kUnfused,    // FP16_UnfusedOptimizer, stage 0: per parameter lists in the model file
  kZero,       // DeepSpeedZeroOptimizer, stage 1 or 2: partitions in optimizer files
  kBf16,       // BF16_Optimizer, stage 0 with pipeline or stage 1: partitions with padding kept, in
               // optimizer files
  kUniversal,  // DeepSpeed's universal folder: one folder a parameter
};

enum class NameLayout {
  kPipeline,
  kPlain
};  // layer files and "<L>.<name>", or one module in the model file

}  // namespace reshape
