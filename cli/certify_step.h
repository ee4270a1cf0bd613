// The certifying step that `certify` and `reshape` share: judge, write reports, print, exit code.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "certify/certify.h"
#include "cli/report.h"

namespace cli {

struct CertifyStep {
  std::string source, target;
  certify::Declared source_declared, target_declared;
  ReportFiles reports;
  bool json = false;
};

int CertifyAndReport(const CertifyStep& step);
void AddReportFlags(CLI::App& app, ReportFiles& files);  // --certificate --html --junit

}  // namespace cli
