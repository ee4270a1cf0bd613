// The certificate as one page without scripts, fonts or any other resource.

#include <string>
#include <string_view>

#include "certify/certify.h"
#include "certify/format.h"
#include "certify/xml_text.h"

namespace certify {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kStyle = R"css(
:root { --held: #1a7f37; --broken: #cf222e; --undecided: #9a6700; --quiet: #656d76;
  --line: #d0d7de; --back: #f6f8fa; }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2328; margin: 0 auto; max-width: 68rem;
  padding: 2rem 1rem 4rem; }
h1 { font-size: 1.3rem; margin: 0 0 1rem; }
h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
.verdict { border-left: .5rem solid; padding: 1rem 1.25rem; background: var(--back); }
.verdict > b { font-size: 1.7rem; letter-spacing: .04em; display: block; }
.held, .certified { color: var(--held); }
.broken, .refuted { color: var(--broken); }
.undecided { color: var(--undecided); }
.quiet { color: var(--quiet); }
.verdict p { color: #1f2328; margin: .3rem 0 0; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .45rem .6rem;
  border-bottom: 1px solid var(--line); }
th { font-weight: 600; background: var(--back); }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.law { font-weight: 600; }
code, .mono { font: 13px/1.45 ui-monospace, monospace; overflow-wrap: anywhere; }
details { margin: .5rem 0; }
summary { cursor: pointer; }
ul { margin: .3rem 0; padding-left: 1.2rem; }
li { margin: .2rem 0; overflow-wrap: anywhere; }
.fault::before { content: "fault "; color: var(--broken); font-weight: 600; }
.notice::before { content: "notice "; color: var(--quiet); font-weight: 600; }
.sides { display: grid; grid-template-columns: 1fr 1fr; gap: 1.5rem; }
@media (max-width: 45rem) { .sides { grid-template-columns: 1fr; } }
)css";

std::string Text(const ordered_json& json, const char* key) {
  if (!json.is_object() || !json.contains(key)) return "";
  const ordered_json& value = json[key];
  return EscapeXml(value.is_string() ? value.get<std::string>() : value.dump());
}

const ordered_json& Array(const ordered_json& json, const char* key) {
  static const ordered_json kNone = ordered_json::array();
  return json.is_object() && json.contains(key) && json[key].is_array() ? json[key] : kNone;
}

const ordered_json& Object(const ordered_json& json, const char* key) {
  static const ordered_json kNone = ordered_json::object();
  return json.is_object() && json.contains(key) && json[key].is_object() ? json[key] : kNone;
}

// A verdict is also a class of the style sheet; only known words become one.
std::string VerdictClass(const std::string& verdict) {
  for (const char* known : {"held", "broken", "undecided", "certified", "refuted"})
    if (verdict == known) return known;
  return "quiet";
}

std::string TopologyText(const ordered_json& side) {
  const ordered_json& checkpoint = Object(side, "checkpoint");
  if (checkpoint.empty()) return "not readable";
  const ordered_json& topology = Object(checkpoint, "topology");
  return Format("TP={} PP={} DP={}, ZeRO stage {}, {}", Text(topology, "tp"), Text(topology, "pp"),
                Text(topology, "dp"), Text(checkpoint, "zero_stage"), Text(checkpoint, "dtype"));
}

std::string VerdictBox(const ordered_json& certificate) {
  const std::string verdict = Text(certificate, "verdict");
  std::string upper = verdict;
  for (char& c : upper) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  std::string html = Format(
      "<div class=\"verdict {}\"><b>{}</b>\n<p>{} &rarr; {}</p>\n", VerdictClass(verdict), upper,
      TopologyText(Object(certificate, "source")), TopologyText(Object(certificate, "target")));
  if (!Text(certificate, "root").empty()) {
    html += Format("<p>Root: <b>{}</b>", Text(certificate, "root"));
    std::string follows;
    for (const ordered_json& law : Array(certificate, "consequences"))
      if (law.is_string())
        follows += (follows.empty() ? "" : ", ") + EscapeXml(law.get<std::string>());
    if (!follows.empty()) html += ". Consequences: " + follows;
    html += "</p>\n";
  }
  return html + "</div>\n";
}

std::string FindingsList(const ordered_json& law, bool faults) {
  std::string items;
  for (const ordered_json& finding : Array(law, "findings")) {
    const bool fault = Text(finding, "severity") == "fault";
    if (fault != faults) continue;
    std::string entries;
    for (const ordered_json& entry : Array(finding, "entries"))
      if (entry.is_string())
        entries += (entries.empty() ? ": " : ", ") + EscapeXml(entry.get<std::string>());
    items += Format("<li class=\"{}\">{}{}</li>\n", fault ? "fault" : "notice",
                    Text(finding, "text"), entries);
  }
  return items.empty() ? "" : "<ul>\n" + items + "</ul>\n";
}

std::string LawsTable(const ordered_json& certificate) {
  std::string html =
      "<h2>Laws</h2>\n<table><tr><th>Law</th><th>Verdict</th><th>Compared</th><th>Covers, and does "
      "not cover</th></tr>\n";
  for (const ordered_json& law : Array(certificate, "laws")) {
    const std::string verdict = Text(law, "verdict");
    html += Format(
        "<tr><td class=\"law\">{} {}</td><td class=\"{}\">{}{}</td><td class=\"number\">{} "
        "{}</td><td>{}<br><span class=\"quiet\">Not: "
        "{}</span></td></tr>\n",
        Text(law, "law"), Text(law, "title"), VerdictClass(verdict), verdict,
        Text(law, "reason").empty()
            ? ""
            : "<br><span class=\"quiet\">" + Text(law, "reason") + "</span>",
        Text(law, "compared"), Text(law, "unit"), Text(law, "covers"), Text(law, "does_not_cover"));
  }
  return html + "</table>\n";
}

std::string Findings(const ordered_json& certificate) {
  std::string html = "<h2>Findings</h2>\n";
  bool any = false;
  for (const ordered_json& law : Array(certificate, "laws")) {
    if (Text(law, "law") == "R7") continue;  // has its own list
    const std::string faults = FindingsList(law, true), notices = FindingsList(law, false);
    if (faults.empty() && notices.empty()) continue;
    any = true;
    html += Format(
        "<details{}><summary><b>{} {}</b> <span class=\"quiet\">{} "
        "findings</span></summary>\n{}{}</details>\n",
        faults.empty() ? "" : " open", Text(law, "law"), Text(law, "title"),
        Text(law, "findings_total"), faults, notices);
  }
  return any ? html : html + "<p class=\"quiet\">None.</p>\n";
}

std::string TheRest(const ordered_json& certificate) {
  for (const ordered_json& law : Array(certificate, "laws")) {
    if (Text(law, "law") != "R7") continue;
    return "<h2>Carried, re-derived, made up, dropped (R7)</h2>\n" + FindingsList(law, true) +
           FindingsList(law, false);
  }
  return "";
}

std::string SideTable(const ordered_json& side, const char* title) {
  std::string html = Format("<div><h2>{}</h2>\n<table>\n", title);
  for (const char* key :
       {"format", "layout", "wrapper", "tag", "step", "zero_stage", "dtype", "framework_version",
        "rules", "qkv_layout", "tensor_count", "element_count"}) {
    const std::string value = Text(Object(side, "checkpoint"), key);
    if (!value.empty() && value != "null")
      html += Format("<tr><th>{}</th><td>{}</td></tr>\n", key, value);
  }
  html += "</table>\n<p><b>Declared:</b> ";
  const ordered_json& declared = Object(side, "declared");
  if (declared.empty()) html += "<span class=\"quiet\">nothing</span>";
  std::string separator;
  for (const auto& [key, value] : declared.items()) {
    html += separator + EscapeXml(key) + " = <code>" +
            EscapeXml(value.is_string() ? value.get<std::string>() : value.dump()) + "</code>";
    separator = ", ";
  }
  return html + "</p></div>\n";
}

std::string Files(const ordered_json& side, const char* title) {
  std::string html =
      Format("<details><summary>Files of the {} ({}), with XXH3-128</summary>\n<table>\n", title,
             Array(side, "files").size());
  for (const ordered_json& file : Array(side, "files"))
    html += Format(
        "<tr><td class=\"mono\">{}</td><td class=\"number\">{}</td><td "
        "class=\"mono\">{}</td></tr>\n",
        Text(file, "name"), Text(file, "bytes"), Text(file, "xxh3_128"));
  return html + "</table></details>\n";
}

}  // namespace

std::string CertificateHtml(const ordered_json& certificate) {
  const ordered_json& source = Object(certificate, "source");
  const ordered_json& target = Object(certificate, "target");
  std::string html =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
  html += Format("<title>shardproof: {}</title>\n<style>{}</style>\n</head>\n<body>\n",
                 Text(certificate, "verdict"), kStyle);
  html += "<h1>Certificate of a checkpoint reshape</h1>\n" + VerdictBox(certificate) +
          LawsTable(certificate) + Findings(certificate);
  html += "<div class=\"sides\">" + SideTable(source, "Source") + SideTable(target, "Target") +
          "</div>\n";
  html +=
      TheRest(certificate) + "<h2>Files</h2>\n" + Files(source, "source") + Files(target, "target");
  const ordered_json& software = Object(certificate, "software");
  html += Format(
      "<p class=\"quiet\">{} {}; digest of this certificate ({}): "
      "<code>{}</code></p>\n</body>\n</html>\n",
      Text(software, "name"), Text(software, "version"),
      Text(Object(certificate, "digest"), "algorithm"), Text(Object(certificate, "digest"), "hex"));
  return html;
}

}  // namespace certify
