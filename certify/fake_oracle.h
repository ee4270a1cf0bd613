// A checkpoint made of tensors in memory, for tests of the laws: what the oracle would say of a
// small fp16 model, and what a test changes.
#pragma once

#include <ATen/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "certify/subject.h"
#include "oracle/oracle.h"

namespace certify {

class FakeOracle : public oracle::Oracle {
 public:
  using Key = std::pair<size_t, std::string>;

  const oracle::Summary& summary() const override { return facts; }
  const std::vector<oracle::TensorInfo>& tensors() const override { return infos; }
  checkpoint::Result<oracle::Assembled> Assemble(size_t index,
                                                 const std::string& state) const override;
  checkpoint::Result<std::vector<oracle::HolderPart>> PartOfEachHolder(
      size_t index, const std::string& state) const override;
  checkpoint::Result<std::vector<std::vector<oracle::ShardCopy>>> CopiesOf(
      size_t index, const std::string& state) const override;
  checkpoint::Result<std::map<std::string, at::Tensor>> StaleCopy(size_t index) const override;
  const std::vector<checkpoint::TorchFile>& torch_files() const override { return files; }

  // The tensor of that name. REQUIRES: there is one.
  size_t Index(const std::string& name) const;
  oracle::TensorInfo& Info(const std::string& name) { return infos[Index(name)]; }
  // The values of a state, to be changed in place. The parts of its holders follow at the next
  // ShareOut.
  at::Tensor& Value(const std::string& name, const std::string& state);
  oracle::Assembled& State(const std::string& name, const std::string& state);
  // Adds a tensor with position-coded values: weight, and for trainable ones master and moments in
  // two partitions.
  void Add(const std::string& name, std::vector<int64_t> shape, oracle::Role role);
  // Cuts master and moments of every trainable tensor in two data-parallel parts anew.
  void ShareOut();
  // Weights of type `dtype` from the masters.
  void SetWeightType(checkpoint::DType dtype);

  oracle::Summary facts;
  std::vector<oracle::TensorInfo> infos;
  std::map<Key, oracle::Assembled> states;
  std::map<Key, std::vector<oracle::HolderPart>> parts;
  std::map<Key, std::vector<std::vector<oracle::ShardCopy>>> copies;  // what a test says
  std::map<Key, checkpoint::Error> errors;
  std::map<size_t, std::map<std::string, at::Tensor>> stale;
  std::vector<checkpoint::TorchFile> files;
};

// word_embeddings (12 rows, 10 of them vocabulary, x 4, "vocabulary"), norm.weight (16),
// dense.weight (8 x 4, "row"), dense.bias (16), frozen (3), count (int64, 2). Two groups, four
// steps, ZeRO-1 in fp16 at tp1-pp1-dp2. All of S1-S8 hold.
std::shared_ptr<FakeOracle> SoundModel();

Subject SubjectOf(std::shared_ptr<FakeOracle> fake, const std::string& only = "");

}  // namespace certify
