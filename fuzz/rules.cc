#include "checkpoint/rules.h"

#include "fuzz/entry.h"

namespace fuzz {

void Rules(Bytes input) {
  const std::string_view text(reinterpret_cast<const char*>(input.data()), input.size());
  const auto rules = checkpoint::ParseRules(text, "input");
  if (!rules.ok()) return;
  for (const std::string_view name : {"", "layers.0.mlp.dense_h_to_4h.weight", "2.mlp.bias",
                                      "tied_modules.embed.word_embeddings.weight"}) {
    for (const bool swiglu : {false, true}) {
      const auto* rule = checkpoint::FirstParameterRule(rules.value(), name, swiglu);
      CHECK(rule == nullptr || swiglu || !rule->only_with_swiglu, << name);
    }
    checkpoint::FirstTiedRule(rules.value(), name);
    for (const checkpoint::NameRule& names : rules.value().names) {
      for (const std::string& form : {names.canonical, names.pipeline, names.plain}) {
        const auto match = checkpoint::MatchTemplate(form, name);
        if (match) CHECK(checkpoint::FillTemplate(form, *match) == name, << form);
      }
    }
  }
}

}  // namespace fuzz
