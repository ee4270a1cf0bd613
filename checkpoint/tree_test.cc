#include "checkpoint/tree.h"

#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/container.h"
#include "checkpoint/walk.h"

namespace checkpoint {
namespace {

Value NodeOf(Node node) { return std::make_shared<Node>(std::move(node)); }

Value MakeStorageNode(DType dtype, int64_t numel) {
  auto storage = std::make_shared<Storage>();
  storage->dtype = dtype;
  storage->numel = numel;
  return NodeOf({StorageNode{storage, nullptr}});
}

Value ModuleStateDict() {
  // As nn.Module.state_dict() gives it: an OrderedDict with an attribute.
  Value dict = MakeOrderedDict({{MakeString("weight"), MakeInt(1)}});
  As<ObjectNode>(dict)->state = MakeDict({{MakeString("_metadata"), MakeNone()}});
  return dict;
}

TEST(TreeTest, EveryKindOfMappingIsReadTheSameWay) {
  const Items items = {{MakeString("a"), MakeInt(1)}, {MakeInt(7), MakeString("seven")}};
  const Value mappings[] = {MakeDict(items), MakeOrderedDict(items),
                            MakeInstance("argparse", "Namespace", MakeDict(items))};
  for (const Value& mapping : mappings) {
    ASSERT_TRUE(MappingItems(mapping));
    EXPECT_EQ(MappingItems(mapping)->size(), 2u);
    EXPECT_EQ(AsInt(Get(mapping, "a")), 1);
    EXPECT_EQ(AsString(GetIndex(mapping, 7)), "seven");
    EXPECT_TRUE(Has(mapping, "a"));
    EXPECT_FALSE(Has(mapping, "7"));
    EXPECT_EQ(Get(mapping, "b"), nullptr);
    EXPECT_EQ(GetIndex(mapping, 8), nullptr);
  }
}

TEST(TreeTest, OrderedDictWithAttributesMapsItsItems) {
  EXPECT_EQ(AsInt(Get(ModuleStateDict(), "weight")), 1);
  EXPECT_FALSE(Has(ModuleStateDict(), "_metadata"));
  // An empty one is empty, whatever its attributes.
  Value empty = MakeOrderedDict({});
  As<ObjectNode>(empty)->state = MakeDict({{MakeString("_metadata"), MakeNone()}});
  ASSERT_TRUE(MappingItems(empty));
  EXPECT_TRUE(MappingItems(empty)->empty());
}

TEST(TreeTest, WhatMapsNothingHasNoItems) {
  for (const Value& value :
       {Value(), MakeNone(), MakeInt(1), MakeList({}), MakeTorchSize({1}),
        MakeInstance("a", "b", nullptr), MakeInstance("a", "b", MakeTuple({MakeNone()}))}) {
    EXPECT_EQ(MappingItems(value), nullptr);
    EXPECT_EQ(Get(value, "a"), nullptr);
    EXPECT_EQ(GetPath(value, {"a", "b"}), nullptr);
  }
}

TEST(TreeTest, PathsGoThroughMappings) {
  const Value root =
      MakeDict({{MakeString("optimizer"),
                 MakeInstance("m", "C", MakeDict({{MakeString("groups"), MakeFloat(0.5)}}))}});
  EXPECT_EQ(AsNumber(GetPath(root, {"optimizer", "groups"})), 0.5);
  EXPECT_EQ(GetPath(root, {"optimizer", "missing", "groups"}), nullptr);
  EXPECT_EQ(GetPath(root, {}), root);
}

TEST(TreeTest, NumbersConvertOnlyWhereNothingIsLost) {
  EXPECT_EQ(AsInt(MakeBool(true)), 1);
  EXPECT_EQ(AsInt(MakeFloat(1.0)), std::nullopt);
  EXPECT_EQ(AsInt(MakeReduce("deepspeed.runtime.zero.config", "ZeroStageEnum", {MakeInt(2)})), 2);
  EXPECT_EQ(AsInt(MakeTorchSize({2})), std::nullopt);
  EXPECT_EQ(AsInt(MakeReduce("m", "f", {MakeInt(1), MakeInt(2)})), std::nullopt);
  EXPECT_EQ(AsInt(MakeInstance("m", "C", MakeDict({}))), std::nullopt);
  EXPECT_EQ(AsInt(Value()), std::nullopt);
  EXPECT_EQ(AsNumber(MakeInt(3)), 3.0);
  EXPECT_EQ(AsNumber(MakeBool(true)), 1.0);
  EXPECT_EQ(AsNumber(MakeString("3")), std::nullopt);
  EXPECT_EQ(AsBool(MakeBool(false)), false);
  EXPECT_EQ(AsBool(MakeInt(0)), std::nullopt);
  EXPECT_EQ(AsString(MakeString("x")), "x");
  EXPECT_EQ(AsString(MakeNone()), std::nullopt);
}

TEST(TreeTest, ShapesAreTuplesListsOrTorchSizes) {
  const std::vector<int64_t> shape = {2, 3};
  EXPECT_EQ(AsIntList(MakeTorchSize({2, 3})), shape);
  EXPECT_EQ(AsIntList(MakeTuple({MakeInt(2), MakeInt(3)})), shape);
  EXPECT_EQ(AsIntList(MakeList({MakeInt(2), MakeInt(3)})), shape);
  EXPECT_EQ(AsIntList(MakeTorchSize({})), std::vector<int64_t>{});
  EXPECT_EQ(AsIntList(MakeList({MakeFloat(2)})), std::nullopt);
  EXPECT_EQ(AsIntList(MakeInt(2)), std::nullopt);
  EXPECT_EQ(AsIntList(MakeReduce("torch", "Size", {MakeInt(2)})), std::nullopt);
}

TEST(TreeTest, ClassNamesAreThoseOfInstances) {
  EXPECT_EQ(ClassName(MakeInstance("argparse", "Namespace", nullptr)), "argparse.Namespace");
  EXPECT_EQ(ClassName(MakeGlobal("torch", "float16")), "");
  EXPECT_EQ(ClassName(MakeDict({})), "");
}

TEST(TreeTest, CopiesWithAnEntryKeepClassOrderAndTheOriginal) {
  const Value lr = MakeFloat(0.1);
  const Items items = {{MakeString("step"), MakeInt(4)}, {MakeString("lr"), lr}};
  for (const Value& mapping : {MakeDict(items), MakeOrderedDict(items),
                               MakeInstance("argparse", "Namespace", MakeDict(items))}) {
    const Value changed = WithEntry(mapping, "step", MakeInt(5));
    EXPECT_EQ(AsInt(Get(mapping, "step")), 4);
    EXPECT_EQ(AsInt(Get(changed, "step")), 5);
    EXPECT_EQ(Get(changed, "lr"), lr);
    EXPECT_EQ(ClassName(changed), ClassName(mapping));
    EXPECT_EQ((*MappingItems(changed))[0].first, (*MappingItems(mapping))[0].first);

    const Value longer = WithEntry(mapping, "wd", MakeInt(1));
    EXPECT_EQ(MappingItems(longer)->size(), 3u);
    EXPECT_EQ(AsString(MappingItems(longer)->back().first), "wd");

    const Value shorter = WithoutEntry(mapping, "step");
    EXPECT_EQ(MappingItems(shorter)->size(), 1u);
    EXPECT_EQ(Get(shorter, "lr"), lr);
    EXPECT_TRUE(SameStructure(WithoutEntry(mapping, "absent"), mapping));
  }
  const Value module = WithEntry(ModuleStateDict(), "bias", MakeInt(2));
  EXPECT_EQ(AsInt(Get(module, "bias")), 2);
  EXPECT_TRUE(As<ObjectNode>(module)->state);
}

TEST(TreeDeathTest, OnlyMappingsTakeEntries) {
  EXPECT_DEATH(WithEntry(MakeInt(1), "a", MakeNone()), "no mapping");
  EXPECT_DEATH(WithoutEntry(MakeInt(1), "a"), "no mapping");
}

TEST(SameStructureTest, EqualTreesAreEqualWhateverTheyShare) {
  const Value inner = MakeList({MakeInt(1)});
  const Value shared = MakeTuple({inner, inner});
  const Value apart = MakeTuple({MakeList({MakeInt(1)}), MakeList({MakeInt(1)})});
  EXPECT_TRUE(SameStructure(shared, apart));
  EXPECT_TRUE(SameStructure(apart, shared));
  EXPECT_FALSE(SameStructure(shared, MakeTuple({inner, MakeList({MakeInt(2)})})));
  EXPECT_TRUE(SameStructure(Value(), Value()));
  EXPECT_FALSE(SameStructure(Value(), MakeNone()));
}

TEST(SameStructureTest, EveryKindDiffersFromItsNeighbours) {
  const Value dict = MakeDict({{MakeString("a"), MakeInt(1)}, {MakeString("b"), MakeInt(2)}});
  const Value distinct[] = {
      MakeNone(),
      MakeBool(true),
      MakeBool(false),
      MakeInt(1),
      MakeInt(0),
      MakeFloat(1.0),
      MakeFloat(0.0),
      MakeFloat(-0.0),
      MakeFloat(std::nan("")),
      MakeString("1"),
      MakeString(""),
      NodeOf({BytesNode{"1"}}),
      NodeOf({BigIntNode{"123456789"}}),
      NodeOf({BigIntNode{"023456789"}}),
      MakeTuple({}),
      MakeTuple({MakeInt(1)}),
      MakeList({}),
      MakeList({MakeInt(1)}),
      MakeList({MakeInt(1), MakeInt(1)}),
      MakeDict({}),
      dict,
      MakeDict({{MakeString("b"), MakeInt(2)}, {MakeString("a"), MakeInt(1)}}),
      NodeOf({SetNode{{MakeInt(1)}, false}}),
      NodeOf({SetNode{{MakeInt(1)}, true}}),
      MakeGlobal("torch", "Size"),
      MakeGlobal("torch", "size"),
      MakeTorchSize({1}),
      MakeOrderedDict({}),
      MakeOrderedDict({{MakeString("a"), MakeInt(1)}}),
      MakeInstance("m", "C", nullptr),
      MakeInstance("m", "C", MakeDict({})),
      MakeReduce("m", "C", {}),
      MakeStorageNode(DType::kFloat32, 4),
      MakeStorageNode(DType::kFloat32, 5),
      MakeStorageNode(DType::kFloat16, 4)};
  for (size_t i = 0; i < std::size(distinct); ++i) {
    for (size_t j = 0; j < std::size(distinct); ++j) {
      EXPECT_EQ(SameStructure(distinct[i], distinct[j]), i == j) << i << " and " << j;
      EXPECT_EQ(SameStructure(MakeList({distinct[i]}), MakeList({distinct[j]})), i == j);
    }
  }
  EXPECT_TRUE(SameStructure(MakeFloat(std::nan("1")), MakeFloat(std::nan("2"))));
}

TEST(RenderTest, OneLineForEverything) {
  const std::pair<Value, std::string> cases[] = {
      {MakeNone(), "None"},
      {Value(), "None"},
      {MakeBool(true), "True"},
      {MakeInt(-3), "-3"},
      {MakeFloat(0.01), "0.01"},
      {MakeFloat(1), "1.0"},
      {MakeFloat(1e-8), "1e-08"},
      {MakeFloat(std::numeric_limits<double>::infinity()), "inf"},
      {MakeString("fused"), "'fused'"},
      {MakeString("a\nb"), "'a b'"},
      {MakeTuple({MakeFloat(0.9), MakeFloat(0.95)}), "(0.9, 0.95)"},
      {MakeTuple({MakeInt(1)}), "(1,)"},
      {MakeList({MakeInt(0)}), "[0]"},
      {MakeList({MakeList({})}), "list(1)"},
      {MakeList(std::vector<Value>(17, MakeInt(0))), "list(17)"},
      {MakeDict({{MakeInt(1), MakeInt(2)}}), "dict(1)"},
      {MakeOrderedDict({}), "collections.OrderedDict(0)"},
      {MakeTorchSize({2, 3}), "torch.Size([2, 3])"},
      {MakeReduce("m", "Stage", {MakeInt(2)}), "m.Stage(2,)"},
      {MakeReduce("m", "C", {MakeList({MakeList({})})}), "m.C(...)"},
      {MakeGlobal("torch", "float16"), "torch.float16"},
      {NodeOf({BytesNode{"abc"}}), "bytes(3)"},
      {NodeOf({SetNode{{}, false}}), "set(0)"},
      {MakeStorageNode(DType::kBFloat16, 9), "storage(bfloat16, 9)"}};
  for (const auto& [value, text] : cases) EXPECT_EQ(Render(value, 100), text);
}

TEST(RenderTest, LongTextIsCutBetweenCharacters) {
  EXPECT_EQ(Render(MakeString("abcdefgh"), 6), "'ab...");
  EXPECT_EQ(Render(MakeString("a\xc3\xa4\xc3\xa4\xc3\xa4"), 6), "'a...");
  EXPECT_EQ(Render(MakeString("abcdefgh"), 2), "..");
  EXPECT_EQ(Render(MakeString("abcdefgh"), 0), "");
}

TEST(TreeTest, MegatronArgumentsAreAMapping) {
  const std::string path = SHARDPROOF_SOURCE_DIR
      "/fixtures/corpus/megatron_deepspeed/r1_tp4pp4dp1_z0_fp16/checkpoint/global_step4/"
      "mp_rank_00_model_states.pt";
  const Result<TorchFile> file = OpenTorchFile(path);
  ASSERT_TRUE(file.ok()) << file.error().ToString();
  const Value args = Get(file.value().root, "args");
  EXPECT_EQ(ClassName(args), "argparse.Namespace");
  EXPECT_EQ(AsInt(Get(args, "tensor_model_parallel_size")), 4);
  EXPECT_EQ(AsInt(Get(args, "pipeline_model_parallel_size")), 4);
  EXPECT_EQ(AsInt(Get(args, "num_layers")), 4);
  EXPECT_EQ(AsNumber(GetPath(file.value().root, {"ds_config", "gradient_clipping"})), 1.0);
  const Value changed = WithEntry(args, "tensor_model_parallel_size", MakeInt(2));
  EXPECT_EQ(AsInt(Get(changed, "tensor_model_parallel_size")), 2);
  EXPECT_EQ(MappingItems(changed)->size(), MappingItems(args)->size());
}

}  // namespace
}  // namespace checkpoint
