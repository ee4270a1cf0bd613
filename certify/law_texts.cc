// The words of docs/LAWS.md as data. law_texts_test.cc compares the two.
#include <array>

#include "certify/report.h"
#include "checkpoint/status.h"

namespace certify {
namespace {

const std::array kLawTexts = {
    LawText{
        "S1", "complete", "files",
        "Presence of every file that the topology needs, and of the same entries in every model "
        "file; one tag; one engine step over all model files; args of one model and of this "
        "topology; each model file under the name of its writer; names of all other files.",
        "Other values in the files; files outside the run folder."},
    LawText{"S2", "covered", "elements",
            "Every element of every state of every logical tensor, vocabulary padding included: "
            "held by "
            "exactly one piece, replicas aside. Alignment padding, to the element.",
            "Values; elements of alignment padding beyond being zero."},
    LawText{"S3", "replicas agree", "elements",
            "Bits of what several ranks or files hold: replicated tensors, tied tensors on several "
            "pipeline stages, data-parallel copies, a second optimizer dictionary.",
            "Tensors that one rank alone holds; RNG streams."},
    LawText{
        "S4", "masters are fresh", "elements",
        "Every fp32 master rounded to the weights' type equals the weight, bit for bit; any NaN "
        "equals any NaN.",
        "Whether both are what training produced; frozen parameters and buffers, which have no "
        "master; the low bits of masters, which no weight shows."},
    LawText{"S5", "moments are sane", "elements",
            "exp_avg and exp_avg_sq: present, of the parameter's shape, finite, exp_avg_sq not "
            "negative, "
            "no rank's part zero where the rest is trained.",
            "Whether the values are right."},
    LawText{
        "S6", "counters agree", "counters",
        "Optimizer steps, engine steps, skipped steps, loss scale, scheduler and consumed samples: "
        "equal over all ranks, and with each other.",
        "Whether the learning rate follows its schedule."},
    LawText{
        "S7", "groups are right", "parameters",
        "Every trainable parameter is in exactly one optimizer group; weight decay as its rule "
        "says, "
        "where there is a rule.",
        "Whether the hyper-parameters are the intended ones; weight decay where no rule is known."},
    LawText{"S8", "containers are whole", "records",
            "Zip structure, CRC-32 of every record, pickle within limits and without dangerous "
            "callables, of every file.",
            "Harm that a class of the user's own may do when it is loaded; content that was "
            "damaged before it was checksummed; legacy containers have no checksums."},
    LawText{
        "R1", "same logical tensors", "tensors",
        "Canonical names, shapes less vocabulary padding, roles (trainable, frozen, buffer) and "
        "aliases, both ways.",
        "Values."},
    LawText{"R2", "weights equal", "elements",
            "Bits of every weight, frozen parameter and buffer, vocabulary padding where both "
            "sides have "
            "it; after a change of type, the source's masters rounded to nearest even.",
            "Vocabulary padding rows that one side alone has (listed in R7)."},
    LawText{"R3", "masters equal", "elements",
            "Bits of every fp32 master, vocabulary padding where both sides have it.",
            "Vocabulary padding rows that one side alone has (listed in R7)."},
    LawText{
        "R4", "moments equal", "elements",
        "Bits of exp_avg, exp_avg_sq and any other state of a parameter's shape; after a declared "
        "rescaling, exp_avg times k and exp_avg_sq times k squared, rounded once.",
        "Vocabulary padding rows that one side alone has (listed in R7)."},
    LawText{
        "R5", "training state carried", "entries",
        "Steps of every parameter, hyper-parameters, group membership, scheduler, loss scale and "
        "engine counters.",
        "Data loader position, RNG streams (listed in R7)."},
    LawText{"R6", "target obeys S1-S8", "laws", "The target on its own, by laws S1-S8.",
            "The source on its own."},
    LawText{"R7", "everything else is listed", "entries",
            "An exact list of what was carried, re-derived (by which rule), made up or dropped; a "
            "change "
            "that no rule explains breaks the law.",
            "Whether the framework reads an entry."},
    LawText{"R8", "source is one checkpoint", "laws",
            "The source on its own, by laws S1, S2, S3, S6 and S8: what a reshape has to rely on.",
            "Laws S4, S5 and S7 of the source: what they see a reshape carries, and R6 sees it in "
            "the target."},
    LawText{
        "V1", "files unchanged", "files",
        "Name, byte count and XXH3-128 of every file on both sides against the certificate; the "
        "certificate's own digest.",
        "Deliberate forgery: XXH3 is no cryptographic hash."},
};

}  // namespace

const LawText& TextOf(std::string_view law) {
  for (const LawText& text : kLawTexts)
    if (text.law == law) return text;
  CHECK(false, << "law=" << law);
  return kLawTexts.front();
}

std::vector<std::string_view> LawNumbers(char letter) {
  std::vector<std::string_view> numbers;
  for (const LawText& text : kLawTexts)
    if (text.law.front() == letter) numbers.push_back(text.law);
  return numbers;
}

}  // namespace certify
