#include "checkpoint/callables.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <span>
#include <unordered_set>

#include "checkpoint/tree.h"
#include "checkpoint/walk.h"

namespace checkpoint {
namespace {

// Modules of which nothing has a place in a checkpoint, their submodules included.
constexpr std::string_view kDangerousModules[] = {
    // The operating system, processes, terminals.
    "os", "posix", "nt", "subprocess", "_posixsubprocess", "_winapi", "winreg", "commands",
    "popen2", "pty", "pexpect", "signal", "platform", "multiprocessing", "_multiprocessing",
    "concurrent", "threading", "_thread", "asyncio", "sched",
    // The interpreter: imports, code objects, debuggers, runners.
    "sys", "_sys", "_os", "runpy", "importlib", "_frozen_importlib", "_frozen_importlib_external",
    "imp", "_imp", "pkgutil", "zipimport", "site", "code", "codeop", "bdb", "pdb", "cProfile",
    "profile", "trace", "timeit", "doctest", "unittest", "pydoc", "inspect", "gc", "atexit",
    "idlelib", "lib2to3", "venv", "ensurepip", "pip", "setuptools", "distutils", "pkg_resources",
    "py_compile", "compileall", "antigravity", "tkinter",
    // Calls put together from parts.
    "functools", "operator", "_operator", "weakref", "contextlib",
    // Native code.
    "ctypes", "_ctypes", "cffi", "numba", "llvmlite",
    // Files and other pickles.
    "shutil", "tempfile", "fileinput", "glob", "linecache", "pickle", "_pickle", "cPickle",
    "pickletools", "marshal", "shelve", "dbm", "sqlite3", "_sqlite3", "dill", "cloudpickle",
    "joblib", "jsonpickle", "yaml", "mmap", "zipfile", "tarfile",
    // The network.
    "socket", "_socket", "socketserver", "ssl", "http", "httplib", "urllib", "urllib2", "ftplib",
    "smtplib", "poplib", "imaplib", "nntplib", "telnetlib", "xmlrpc", "webbrowser", "requests",
    "httpx", "aiohttp", "paramiko", "getpass",
    // Parts of the frameworks that load, compile, or start something.
    "torch.hub", "torch.serialization", "torch.package", "torch.jit", "torch.utils.cpp_extension",
    "torch.utils.collect_env", "torch.utils.bottleneck", "torch.utils.model_zoo",
    "torch.distributed.rpc", "torch.distributed.run", "torch.distributed.launch",
    "torch.distributed.elastic", "torch.multiprocessing", "torch._inductor", "torch._dynamo",
    "torch.testing", "torch.onnx", "torch.ops", "torch._ops", "torch.library", "torch.export",
    "numpy.testing", "numpy.f2py", "numpy.distutils", "numpy.ctypeslib", "numpy.lib",
    "deepspeed.launcher", "deepspeed.ops.op_builder", "logging.config", "pandas.io"};

struct Name {
  std::string_view module, name;
};

// Single functions of modules that are no danger as a whole.
constexpr Name kDangerousNames[] = {{"torch", "load"},
                                    {"torch", "save"},
                                    {"torch", "compile"},
                                    {"torch", "from_file"},
                                    {"torch", "hub"},
                                    {"torch", "jit"},
                                    {"torch", "classes"},
                                    {"torch", "ops"},
                                    {"torch._utils", "_import_dotted_name"},
                                    {"torch.storage", "_load_from_bytes"},
                                    {"numpy", "load"},
                                    {"numpy", "save"},
                                    {"numpy", "fromfile"},
                                    {"numpy", "memmap"},
                                    {"numpy", "loadtxt"},
                                    {"numpy", "genfromtxt"},
                                    {"pandas", "read_pickle"},
                                    {"pandas", "eval"},
                                    {"uuid", "_get_command_stdout"},
                                    {"types", "CodeType"},
                                    {"types", "FunctionType"},
                                    {"types", "LambdaType"},
                                    {"types", "MethodType"},
                                    {"io", "open"},
                                    {"io", "open_code"},
                                    {"io", "FileIO"},
                                    {"_io", "open"},
                                    {"_io", "open_code"},
                                    {"_io", "FileIO"},
                                    {"codecs", "open"}};

// All that is known of these modules; what else builtins have is dangerous.
constexpr std::string_view kBuiltins[] = {
    "set", "frozenset", "list",  "dict",      "tuple", "int",   "long",  "float",  "complex",
    "str", "unicode",   "bytes", "bytearray", "bool",  "slice", "range", "xrange", "object"};

// What frameworks write, one by one.
constexpr Name kKnownNames[] = {{"collections", "OrderedDict"},
                                {"collections", "defaultdict"},
                                {"collections", "Counter"},
                                {"collections", "deque"},
                                {"argparse", "Namespace"},
                                {"types", "SimpleNamespace"},
                                {"copyreg", "_reconstructor"},
                                {"copy_reg", "_reconstructor"},
                                {"_codecs", "encode"},
                                {"datetime", "datetime"},
                                {"datetime", "timedelta"},
                                {"datetime", "date"},
                                {"pathlib", "Path"},
                                {"pathlib", "PosixPath"},
                                {"pathlib", "PurePosixPath"},
                                {"decimal", "Decimal"},
                                {"fractions", "Fraction"},
                                {"numpy", "ndarray"},
                                {"numpy", "dtype"},
                                {"numpy._core.multiarray", "_reconstruct"},
                                {"numpy._core.multiarray", "scalar"},
                                {"numpy.core.multiarray", "_reconstruct"},
                                {"numpy.core.multiarray", "scalar"},
                                {"numpy._core.numeric", "_frombuffer"},
                                {"numpy.core.numeric", "_frombuffer"},
                                {"torch", "device"},
                                {"torch._tensor", "_rebuild_from_type_v2"},
                                {"torch", "float16"},
                                {"torch", "bfloat16"},
                                {"torch", "float32"},
                                {"torch", "float64"},
                                {"torch", "float8_e4m3fn"},
                                {"torch", "float8_e5m2"},
                                {"torch", "int8"},
                                {"torch", "int16"},
                                {"torch", "int32"},
                                {"torch", "int64"},
                                {"torch", "uint8"},
                                {"torch", "bool"},
                                {"torch", "complex64"},
                                {"torch", "complex128"},
                                {"deepspeed.utils.tensor_fragment", "fragment_address"}};

// Packages whose classes (a capital first: enums, configurations, scalers) are known.
constexpr std::string_view kKnownPackages[] = {"deepspeed", "megatron"};

bool IsUnder(std::string_view module, std::string_view package) {
  return module.starts_with(package) &&
         (module.size() == package.size() || module[package.size()] == '.');
}

bool IsListed(std::span<const Name> names, std::string_view module, std::string_view name) {
  return std::any_of(names.begin(), names.end(), [&](const Name& listed) {
    return listed.module == module && listed.name == name;
  });
}

bool IsBuiltins(std::string_view module) {
  return module == "builtins" || module == "__builtin__" || module == "__builtins__";
}

bool IsDangerous(std::string_view module, std::string_view name) {
  if (IsBuiltins(module)) return std::ranges::find(kBuiltins, name) == std::end(kBuiltins);
  if (IsListed(kDangerousNames, module, name)) return true;
  return std::any_of(std::begin(kDangerousModules), std::end(kDangerousModules),
                     [&](std::string_view dangerous) { return IsUnder(module, dangerous); });
}

// Protocol 4 follows dots in a name: torch + "serialization.os.system" is os.system. Any part of
// it may be a module.
bool LeadsToDanger(std::string_view module, std::string_view name) {
  const std::string whole = std::string(module) + "." + std::string(name);
  const size_t last = whole.rfind('.');
  for (size_t begin = 0; begin < last; begin = whole.find('.', begin) + 1) {
    // The module's own parts count from its start alone: megatron.core.test is not `test`.
    if (begin != 0 && begin <= module.size()) continue;
    const std::string_view rest = std::string_view(whole).substr(begin);
    if (IsDangerous(rest.substr(0, last - begin), rest.substr(last - begin + 1))) return true;
  }
  return false;
}

bool IsCapital(char symbol) { return symbol >= 'A' && symbol <= 'Z'; }

bool IsKnown(std::string_view module, std::string_view name) {
  if (name.empty() || name.find('.') != std::string_view::npos) return false;
  if (IsBuiltins(module) || IsListed(kKnownNames, module, name)) return true;
  if (module == "torch" && (name.ends_with("Storage") || name == "Size" || name == "Tensor"))
    return true;
  if (module == "torch._utils") return name.starts_with("_rebuild_");
  return IsCapital(name.front()) &&
         std::any_of(std::begin(kKnownPackages), std::end(kKnownPackages),
                     [&](std::string_view package) { return IsUnder(module, package); });
}

// Where child `index` of a node lies, as users write it; the order is ChildAt's.
std::string StepTo(const Node& node, size_t index) {
  const auto of_pair = [](const std::vector<std::pair<Value, Value>>& items, size_t at) {
    const Value& key = items[at / 2].first;
    if (at % 2 == 0) return std::string(".(key)");
    return "." + AsString(key).value_or("[" + Render(key, 20) + "]");
  };
  if (const auto* dict = std::get_if<DictNode>(&node.content)) return of_pair(dict->items, index);
  const auto* object = std::get_if<ObjectNode>(&node.content);
  if (object == nullptr) return "[" + std::to_string(index) + "]";
  if (index < 2) return index == 0 ? "" : ".(arguments)";
  size_t at = index - 2;
  if (at < object->appended.size()) return "[" + std::to_string(at) + "]";
  at -= object->appended.size();
  return at < 2 * object->items.size() ? of_pair(object->items, at) : "";
}

class Finder {
 public:
  std::vector<NamedCallable> Find(const Value& root) {
    Enter(root);
    while (!open_.empty()) {
      const Value* child = ChildAt(*open_.back().node, open_.back().next_child);
      if (child == nullptr) {
        open_.pop_back();
        continue;
      }
      ++open_.back().next_child;
      if (*child != nullptr) Enter(*child);
    }
    return std::move(found_);
  }

 private:
  struct Frame {
    const Node* node;
    size_t next_child = 0;
  };

  void Enter(const Value& value) {
    // Visited once: only a node with several owners can be met again.
    if (value.use_count() > 1 && !shared_.insert(value.get()).second) return;
    if (const auto* global = As<GlobalNode>(value)) {
      const CallableKind kind = KindOfCallable(global->module, global->name);
      if (kind != CallableKind::kKnown) Note(global->module + "." + global->name, kind);
      return;
    }
    if (const auto* object = As<ObjectNode>(value); object && !As<GlobalNode>(object->callable))
      Note("an object that was made by a call", CallableKind::kDangerous);
    if (ChildAt(*value, 0) != nullptr) open_.push_back({value.get()});
  }

  void Note(std::string name, CallableKind kind) {
    if (!names_.insert(name).second) return;
    std::string path;
    for (const Frame& frame : open_) path += StepTo(*frame.node, frame.next_child - 1);
    if (path.starts_with('.')) path.erase(0, 1);
    found_.push_back({std::move(name), path.empty() ? "the root" : path, kind});
  }

  std::vector<Frame> open_;
  std::unordered_set<const Node*> shared_;  // never iterated
  std::set<std::string> names_;
  std::vector<NamedCallable> found_;
};

}  // namespace

CallableKind KindOfCallable(std::string_view module, std::string_view name) {
  if (LeadsToDanger(module, name)) return CallableKind::kDangerous;
  return IsKnown(module, name) ? CallableKind::kKnown : CallableKind::kForeign;
}

std::vector<NamedCallable> FindCallables(const Value& root) { return Finder().Find(root); }

}  // namespace checkpoint
