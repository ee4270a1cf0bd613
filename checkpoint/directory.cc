#include "checkpoint/directory.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <system_error>
#include <tuple>

#include "checkpoint/file.h"
#include "checkpoint/limits.h"

namespace checkpoint {
namespace {

namespace fs = std::filesystem;

// Takes a file name apart from the left. After a mismatch every further step fails too.
class NameParser {
 public:
  explicit NameParser(std::string_view rest) : rest_(rest) {}

  bool Literal(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }

  // Digits only, at most kRanksMax. `digits` receives the width as written.
  bool Number(int64_t& number, int* digits = nullptr) {
    size_t width = 0;
    int64_t value = 0;
    while (width < rest_.size() && rest_[width] >= '0' && rest_[width] <= '9') {
      value = value * 10 + (rest_[width] - '0');
      if (value > kRanksMax || width >= kDigitsMax) return false;
      ++width;
    }
    if (width == 0) return false;
    number = value;
    if (digits != nullptr) *digits = static_cast<int>(width);
    rest_.remove_prefix(width);
    return true;
  }

  bool End() const { return rest_.empty(); }

 private:
  static constexpr size_t kDigitsMax = 16;  // leading zeros count too
  std::string_view rest_;
};

bool ParseModelStates(NameParser parser, FileName& out) {
  return parser.Literal("mp_rank_") && parser.Number(out.mp_number, &out.digits_mp) &&
         parser.Literal("_model_states.pt") && parser.End();
}

bool ParseZeroModelStates(NameParser parser, FileName& out) {
  return parser.Literal("zero_pp_rank_") && parser.Number(out.zero_number) &&
         parser.Literal("_mp_rank_") && parser.Number(out.mp_number, &out.digits_mp) &&
         parser.Literal("_model_states.pt") && parser.End();
}

bool ParseOptimStates(NameParser parser, FileName& out) {
  for (const char* prefix : {"bf16_", "fp16_"}) {
    if (parser.Literal(prefix)) {
      out.prefix = prefix;
      break;
    }
  }
  if (!parser.Literal("zero_pp_rank_") || !parser.Number(out.zero_number) ||
      !parser.Literal("_mp_rank_") || !parser.Number(out.mp_number, &out.digits_mp)) {
    return false;
  }
  parser.Literal("_");  // absent in names of early versions
  return parser.Literal("optim_states.pt") && parser.End();
}

bool ParseLayer(NameParser parser, FileName& out) {
  if (!parser.Literal("layer_") || !parser.Number(out.layer_number, &out.digits_layer) ||
      !parser.Literal("-")) {
    return false;
  }
  if (parser.Literal("model_states.pt")) return parser.End();
  if (parser.Literal("-model_states.pt")) return parser.End();
  return parser.Literal("model_") && parser.Number(out.model_number, &out.digits_model) &&
         parser.Literal("-model_states.pt") && parser.End();
}

bool ParseExpert(NameParser parser, FileName& out) {
  if (parser.Literal("layer_") &&
      (!parser.Number(out.layer_number, &out.digits_layer) || !parser.Literal("_"))) {
    return false;
  }
  return parser.Literal("expert_") && parser.Number(out.expert_number) &&
         parser.Literal("_mp_rank_") && parser.Number(out.mp_number, &out.digits_mp) &&
         parser.Literal("_model_states.pt") && parser.End();
}

bool ParseExpertOptim(NameParser parser, FileName& out) {
  return parser.Literal("expp_rank_") && parser.Number(out.expert_number) &&
         parser.Literal("_mp_rank_") && parser.Number(out.mp_number, &out.digits_mp) &&
         parser.Literal("_optim_states.pt") && parser.End();
}

bool IsKnownOther(std::string_view name) {
  return name == "zero_to_fp32.py" || name == "latest" || name == "latest_universal" ||
         name == "latest_checkpointed_iteration.txt" || name.ends_with(".shardproof.json");
}

struct Form {
  FileKind kind;
  bool (*parse)(NameParser, FileName&);
};

constexpr Form kForms[] = {
    {FileKind::kModelStates, ParseModelStates}, {FileKind::kZeroModelStates, ParseZeroModelStates},
    {FileKind::kOptimStates, ParseOptimStates}, {FileKind::kLayer, ParseLayer},
    {FileKind::kExpert, ParseExpert},           {FileKind::kExpertOptim, ParseExpertOptim},
};

auto SortKey(const FileName& file) {
  return std::make_tuple(file.kind, file.zero_number, file.mp_number, file.layer_number,
                         file.model_number, file.expert_number);
}

// A step folder's files carry numbers; whether a folder is a step is told by any one of them.
bool IsStepFile(FileKind kind) {
  return kind != FileKind::kKnownOther && kind != FileKind::kUnknown;
}

struct Listing {
  std::vector<std::string> files, folders;  // sorted bytewise
};

// Names in a folder, links followed. A link that leads nowhere is listed as a file.
Result<Listing> List(const fs::path& folder) {
  std::error_code code;
  fs::directory_iterator at(folder, code);
  if (code) return SystemError(code.value(), "list the folder", folder);
  Listing out;
  for (const fs::directory_iterator end; at != end;) {
    if (static_cast<int64_t>(out.files.size() + out.folders.size()) >= kFilesMax) {
      return Error{ErrorCode::kLimitExceeded, "more than " + std::to_string(kFilesMax) + " names",
                   "fewer", folder.string(), "Name the checkpoint's own folder."};
    }
    std::error_code kind_code;
    const bool is_folder = at->is_directory(kind_code);
    (is_folder ? out.folders : out.files).push_back(at->path().filename().string());
    at.increment(code);
    if (code) return SystemError(code.value(), "list the folder", folder);
  }
  std::sort(out.files.begin(), out.files.end());
  std::sort(out.folders.begin(), out.folders.end());
  return out;
}

// Names for a message: the first ones, and how many more.
std::string Enumerate(const std::vector<std::string>& names) {
  constexpr size_t kShown = 12;
  if (names.empty()) return "none";
  std::string text;
  for (size_t i = 0; i < names.size() && i < kShown; ++i) text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kShown) text += " and " + std::to_string(names.size() - kShown) + " more";
  return text;
}

// A tag names one folder inside the run folder and nothing else.
Status CheckTag(const std::string& tag, const fs::path& where) {
  constexpr size_t kTagBytesMax = 255;  // what file systems allow for one name
  std::string found;
  if (tag.empty()) found = "an empty tag";
  if (tag == "." || tag == "..") found = "tag \"" + tag + "\"";
  if (tag.size() > kTagBytesMax) found = "a tag of " + std::to_string(tag.size()) + " bytes";
  for (const char c : tag) {
    const unsigned char byte = static_cast<unsigned char>(c);
    if (c == '/' || c == '\\' || byte < 32 || byte == 127)
      found = "a tag with a slash or a control character";
  }
  if (found.empty()) return Done{};
  return Error{ErrorCode::kNotACheckpoint, found,
               "the plain name of a folder beside it, like global_step1000", where.string(),
               "Correct `latest`, or name the step with --tag."};
}

// The tag inside a file like `latest`: one name, white space around it ignored, as the framework
// does.
Result<std::string> ReadTag(const fs::path& path) {
  constexpr int64_t kLatestBytesMax = 4096;
  CK_TRY(std::string text, ReadSmallFile(path, kLatestBytesMax));
  const char* const kSpace = " \t\r\n\v\f";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string::npos) {
    text.clear();
  } else {
    text = text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
  }
  CK_DO(CheckTag(text, path));
  return text;
}

bool Contains(const std::vector<std::string>& sorted, const std::string& name) {
  return std::binary_search(sorted.begin(), sorted.end(), name);
}

// A path whose last part is the folder's own name, so that a step's parent is its run folder.
Result<fs::path> Named(const fs::path& path) {
  fs::path out = path;
  if (!out.has_filename()) out = out.parent_path();  // a slash at the end
  if (out.has_filename() && out.filename() != "." && out.filename() != "..") return out;
  std::error_code code;
  out = fs::canonical(path, code);
  if (code) return SystemError(code.value(), "resolve the path", path);
  return out;
}

Status RequireFolder(const fs::path& path) {
  std::error_code code;
  const fs::file_status status = fs::status(path, code);
  if (status.type() == fs::file_type::not_found || status.type() == fs::file_type::none) {
    return SystemError(code ? code.value() : ENOENT, "open the checkpoint", path);
  }
  if (status.type() == fs::file_type::directory) return Done{};
  return Error{ErrorCode::kNotACheckpoint, "a file", "a run folder or a step folder", path.string(),
               "Name the folder, not a file in it."};
}

Status ReadUniversal(const std::vector<std::string>& folders, StepFolder& out) {
  if (!Contains(folders, "zero")) return Done{};
  CK_TRY(Listing zero, List(out.step_folder / "zero"));
  for (const std::string& name : zero.folders) {
    std::error_code code;
    if (fs::is_regular_file(out.step_folder / "zero" / name / "fp32.pt", code))
      out.universal = true;
  }
  if (out.universal) out.universal_parameters = std::move(zero.folders);
  return Done{};
}

// Fills everything below out.step_folder.
Status ReadStep(StepFolder& out) {
  CK_TRY(const Listing listing, List(out.step_folder));
  for (const std::string& name : listing.files)
    out.files.push_back(ParseFileName(out.step_folder / name));
  std::stable_sort(out.files.begin(), out.files.end(), [](const FileName& a, const FileName& b) {
    const auto left = SortKey(a), right = SortKey(b);
    return left != right ? left < right : a.name < b.name;
  });
  CK_DO(ReadUniversal(listing.folders, out));
  const bool any = std::any_of(out.files.begin(), out.files.end(),
                               [](const FileName& file) { return IsStepFile(file.kind); });
  if (any || out.universal) return Done{};
  return Error{ErrorCode::kNotACheckpoint,
               std::to_string(listing.files.size()) + " files, none with a name of a checkpoint",
               "files like mp_rank_00_model_states.pt", out.step_folder.string(),
               listing.folders.empty()
                   ? "Name a run folder or a step folder."
                   : "Its folders: " + Enumerate(listing.folders) + ". Name one with --tag."};
}

// Everything that is beside the step in its run folder.
std::vector<std::string> Beside(const Listing& run, const std::string& tag) {
  std::vector<std::string> names = run.files;
  for (const std::string& folder : run.folders) {
    if (folder != tag) names.push_back(folder);
  }
  std::sort(names.begin(), names.end());
  return names;
}

// The step `tag` of the run folder `run_folder`.
Result<StepFolder> OpenTag(const fs::path& run_folder, const Listing& run, const std::string& tag,
                           const std::string& named_by) {
  StepFolder out;
  out.run_folder = run_folder;
  out.step_folder = run_folder / tag;
  out.tag = tag;
  if (!Contains(run.folders, tag)) {
    return Error{ErrorCode::kMissingFile, "no folder \"" + tag + "\", which " + named_by + " names",
                 "one of the folders that are there: " + Enumerate(run.folders),
                 run_folder.string(),
                 "Name another step with --tag, or copy the missing folder here."};
  }
  out.run_files = Beside(run, tag);
  CK_DO(ReadStep(out));
  return out;
}

}  // namespace

FileName ParseFileName(const fs::path& path) {
  const std::string name = path.filename().string();
  for (const Form& form : kForms) {
    FileName out;
    if (!form.parse(NameParser(name), out)) continue;
    out.path = path;
    out.name = name;
    out.kind = form.kind;
    return out;
  }
  FileName out;
  out.path = path;
  out.name = name;
  out.kind = IsKnownOther(name) ? FileKind::kKnownOther : FileKind::kUnknown;
  return out;
}

namespace {

// Without `latest`, a universal folder beside native steps is not what anybody would resume from.
Status RequireAlone(const Listing& here, const std::string& universal, const fs::path& folder) {
  for (const std::string& name : here.folders) {
    if (name == universal || !name.starts_with("global_step")) continue;
    return Error{ErrorCode::kMissingFile, "no `latest`, step folders " + name + " and " + universal,
                 "a `latest` that names one", folder.string(),
                 "Name the step with --tag, or restore `latest`."};
  }
  return Done{};
}

}  // namespace

Result<StepFolder> OpenStepFolder(const fs::path& path, const std::string& tag) {
  CK_DO(RequireFolder(path));
  CK_TRY(const fs::path folder, Named(path));
  CK_TRY(const Listing here, List(folder));
  if (!tag.empty()) {
    CK_DO(CheckTag(tag, folder));
    return OpenTag(folder, here, tag, "the option --tag");
  }
  for (const char* pointer : {"latest", "latest_universal"}) {
    if (!Contains(here.files, pointer)) continue;
    CK_TRY(const std::string latest, ReadTag(folder / pointer));
    if (std::string_view(pointer) == "latest_universal") CK_DO(RequireAlone(here, latest, folder));
    return OpenTag(folder, here, latest, pointer);
  }
  StepFolder out;
  out.run_folder = folder.has_parent_path() ? folder.parent_path() : fs::path(".");
  out.step_folder = folder;
  out.tag = folder.filename().string();
  CK_DO(ReadStep(out));
  // A parent without `latest` may be any folder (a home, a disk): what lies there is no part of the
  // checkpoint.
  std::error_code code;
  if (fs::is_regular_file(out.run_folder / "latest", code)) {
    CK_TRY(const Listing run, List(out.run_folder));
    out.run_files = Beside(run, out.tag);
  }
  return out;
}

}  // namespace checkpoint
