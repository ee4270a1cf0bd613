#include "reshape/naming.h"

namespace reshape {
namespace {

using checkpoint::NameRule;
using checkpoint::PipelineNumbering;
using checkpoint::TemplateMatch;

constexpr std::string_view kTiedPrefix = "tied_modules.";

int64_t FinalLayer(const PipelineNumbering& numbering, int64_t layers) {
  return numbering.first_layer + layers + numbering.final_after;
}
int64_t HeadLayer(const PipelineNumbering& numbering, int64_t layers) {
  return numbering.first_layer + layers + numbering.head_after;
}

// Turns the file numbers of a pipeline name into the index of a canonical one; false where they are
// not this model's.
bool ToIndex(const Naming& naming, TemplateMatch& match) {
  const PipelineNumbering numbering = naming.rules->numbering.value_or(PipelineNumbering{});
  if (match.layer) *match.layer -= numbering.first_layer;
  if (match.layer && (*match.layer < 0 || *match.layer >= naming.transformer_layers)) return false;
  if (match.embedding && *match.embedding != numbering.embedding) return false;
  if (match.final_norm && *match.final_norm != FinalLayer(numbering, naming.transformer_layers))
    return false;
  return !match.head || *match.head == HeadLayer(numbering, naming.transformer_layers);
}

}  // namespace

std::optional<std::string> CanonicalName(const Naming& naming, NameLayout layout,
                                         std::string_view name) {
  for (const NameRule& rule : naming.rules->names) {
    auto match = checkpoint::MatchTemplate(
        layout == NameLayout::kPipeline ? rule.pipeline : rule.plain, name);
    if (!match) continue;
    if (layout == NameLayout::kPipeline) {
      if (!ToIndex(naming, *match)) continue;
    } else if (match->layer && *match->layer >= naming.transformer_layers) {
      continue;
    }
    return checkpoint::FillTemplate(rule.canonical, *match);
  }
  return std::nullopt;
}

std::optional<std::string> NameInLayout(const Naming& naming, NameLayout layout,
                                        std::string_view canonical) {
  const PipelineNumbering numbering = naming.rules->numbering.value_or(PipelineNumbering{});
  for (const NameRule& rule : naming.rules->names) {
    const std::string& text = layout == NameLayout::kPipeline ? rule.pipeline : rule.plain;
    if (text.empty()) continue;
    const bool tied_form = std::string_view(text).starts_with(kTiedPrefix);
    if (layout == NameLayout::kPipeline && tied_form && !naming.tied_embedding) continue;
    auto match = checkpoint::MatchTemplate(rule.canonical, canonical);
    if (!match || (match->layer && *match->layer >= naming.transformer_layers)) continue;
    if (layout == NameLayout::kPipeline) {
      if (match->layer) *match->layer += numbering.first_layer;
      match->embedding = numbering.embedding;
      match->final_norm = FinalLayer(numbering, naming.transformer_layers);
      match->head = HeadLayer(numbering, naming.transformer_layers);
    }
    return checkpoint::FillTemplate(text, *match);
  }
  return std::nullopt;
}

std::optional<int64_t> LayerOfCanonical(const Naming& naming, std::string_view canonical) {
  if (!naming.rules->numbering) return std::nullopt;
  const auto name = NameInLayout(naming, NameLayout::kPipeline, canonical);
  if (!name) return std::nullopt;
  const auto parts = checkpoint::SplitPipelineName(*name);
  if (!parts) return std::nullopt;
  return parts->layer ? *parts->layer : naming.rules->numbering->embedding;
}

}  // namespace reshape
