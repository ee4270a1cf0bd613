#include <algorithm>
#include <set>

#include "checkpoint/zip_reader.h"
#include "fuzz/entry.h"

namespace fuzz {

void Zip(Bytes input) {
  const auto index = checkpoint::ReadZipIndex(input, "input");
  if (!index.ok()) return;
  const auto& records = index.value().records;
  const int64_t file_bytes = static_cast<int64_t>(input.size());
  std::set<std::string> names;
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const checkpoint::Record& record : records) {
    CHECK(names.insert(record.name).second, << record.name << " twice");
    CHECK(checkpoint::FindRecord(records, record.name) == &record, << record.name);
    CHECK(record.payload_offset >= 0 && record.payload_bytes >= 0 &&
              record.payload_offset <= file_bytes - record.payload_bytes,
          << record.name << " leaves the file");
    ranges.emplace_back(record.payload_offset, record.payload_offset + record.payload_bytes);
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i)
    CHECK(ranges[i - 1].second <= ranges[i].first, << "records overlap at " << ranges[i].first);
}

}  // namespace fuzz
