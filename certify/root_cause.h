// Which broken law is the cause and which ones only follow. Internal to certify/. Text:
// docs/LAWS.md, "Root and consequences". Tested by root_cause_test.cc.
#pragma once

#include <vector>

#include "certify/certify.h"

namespace certify {

// Fills verdict, root and consequences from the laws. Broken before undecided before held. A
// judgement in which no law held is undecided.
void Conclude(Judgement& judgement);

}  // namespace certify
