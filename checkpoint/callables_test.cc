#include "checkpoint/callables.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/container.h"
#include "checkpoint/pickle.h"
#include "checkpoint/tree.h"

namespace checkpoint {
namespace {

TEST(CallablesTest, EachClassOfTheTableIsDangerous) {
  const std::pair<const char*, const char*> dangerous[] = {
      {"os", "system"},
      {"posix", "system"},
      {"nt", "system"},
      {"subprocess", "Popen"},
      {"builtins", "eval"},
      {"builtins", "exec"},
      {"builtins", "getattr"},
      {"builtins", "__import__"},
      {"builtins", "compile"},
      {"builtins", "open"},
      {"__builtin__", "eval"},
      {"__builtin__", "apply"},
      {"sys", "modules"},
      {"runpy", "run_path"},
      {"pty", "spawn"},
      {"socket", "create_connection"},
      {"shutil", "rmtree"},
      {"importlib", "import_module"},
      {"importlib.util", "find_spec"},
      {"webbrowser", "open"},
      {"code", "interact"},
      {"bdb", "Bdb"},
      {"timeit", "timeit"},
      {"pickle", "loads"},
      {"_pickle", "loads"},
      {"cPickle", "loads"},
      {"operator", "attrgetter"},
      {"_operator", "methodcaller"},
      {"functools", "partial"},
      {"types", "FunctionType"},
      {"types", "CodeType"},
      {"ctypes", "CDLL"},
      {"torch.hub", "load"},
      {"torch", "load"},
      {"torch.serialization", "load"},
      {"torch.utils.cpp_extension", "load_inline"},
      {"torch.jit", "load"},
      {"torch.storage", "_load_from_bytes"},
      {"numpy", "load"},
      {"numpy.testing", "runstring"},
      {"io", "open"},
      {"http.client", "HTTPConnection"},
      {"deepspeed.launcher.runner", "main"},
      // Dots in a name lead through modules.
      {"torch", "serialization.os.system"},
      {"argparse", "_sys.modules"},
      {"megatron.core", "os.system"},
      {"collections", "abc.sys.exit"}};
  for (const auto& [module, name] : dangerous)
    EXPECT_EQ(KindOfCallable(module, name), CallableKind::kDangerous) << module << "." << name;
}

TEST(CallablesTest, WhatFrameworksWriteIsKnownAndUserClassesAreForeign) {
  const std::pair<const char*, const char*> known[] = {
      {"torch._utils", "_rebuild_tensor_v2"},
      {"collections", "OrderedDict"},
      {"torch", "FloatStorage"},
      {"torch", "Size"},
      {"torch", "bfloat16"},
      {"numpy._core.multiarray", "_reconstruct"},
      {"_codecs", "encode"},
      {"megatron.core.enums", "ModelType"},
      {"megatron.enums", "PositionEmbeddingType"},
      {"deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler"},
      {"__builtin__", "set"},
      {"argparse", "Namespace"}};
  for (const auto& [module, name] : known)
    EXPECT_EQ(KindOfCallable(module, name), CallableKind::kKnown) << module << "." << name;
  const std::pair<const char*, const char*> foreign[] = {
      {"mylab.config", "TrainingConfig"}, {"__main__", "Args"},           {"ossify", "Bone"},
      {"megatron.training", "run_hook"},  {"mylab.os", "Case"}, {"torch", "frombuffer"},
      {"deepspeed", "Outer.Inner"}};
  for (const auto& [module, name] : foreign)
    EXPECT_EQ(KindOfCallable(module, name), CallableKind::kForeign) << module << "." << name;
}

TEST(CallablesTest, PlacesAreNamedAndSharedTreesAreWalkedOnce) {
  const Value hook = MakeReduce("posix", "system", {MakeString("id")});
  const Value args = MakeInstance(
      "argparse", "Namespace",
      MakeDict({{MakeString("seed"), MakeInt(1)}, {MakeString("hooks"), MakeList({hook})}}));
  Value shared = MakeTuple({args, MakeInstance("lab", "Own", nullptr)});
  for (int i = 0; i < 100; ++i) shared = MakeTuple({shared, shared});
  const auto found = FindCallables(MakeDict({{MakeString("args"), args},
                                             {MakeInt(7), MakeGlobal("lab", "Other")},
                                             {MakeString("rest"), shared}}));
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].name, "posix.system");
  EXPECT_EQ(found[0].path, "args.hooks[0]");
  EXPECT_EQ(found[0].kind, CallableKind::kDangerous);
  EXPECT_EQ(found[1].name, "lab.Other");
  EXPECT_EQ(found[1].path, "[7]");
  EXPECT_EQ(found[2].name, "lab.Own");
  EXPECT_EQ(found[2].kind, CallableKind::kForeign);
}

TEST(CallablesTest, CallOfAResultIsDangerous) {
  // collections.OrderedDict()() as a pickle: the called thing is an object.
  const std::string bytes =
      "\x80\x02"
      "ccollections\nOrderedDict\n)R)R.";
  const auto read = ReadPickle(std::as_bytes(std::span(bytes)), {}, "test");
  ASSERT_TRUE(read.ok());
  const auto found = FindCallables(read.value().root);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].kind, CallableKind::kDangerous);
  EXPECT_EQ(found[0].path, "the root");
}

TEST(CallablesTest, CorpusNamesKnownOnesAlone) {
  int64_t files = 0;
  const auto corpus = std::filesystem::path(SHARDPROOF_SOURCE_DIR) / "fixtures/corpus";
  for (const auto& entry : std::filesystem::recursive_directory_iterator(corpus)) {
    if (entry.path().extension() != ".pt") continue;
    const auto file = OpenTorchFile(entry.path());
    if (!file.ok()) continue;
    ++files;
    for (const NamedCallable& found : FindCallables(file.value().root))
      ADD_FAILURE() << entry.path() << ": " << found.name << " at " << found.path;
  }
  EXPECT_GT(files, 500);
}

}  // namespace
}  // namespace checkpoint
