#include "settings.h"

#include <map>

namespace singularity {

std::atomic<uint64_t> settings_number{1};

namespace {

// Equal settings have one number: a part of the metadata cache's keys, because the default dtype and
// others decide what operators return.
uint32_t number_of(const Settings& settings) {
  static std::mutex mutex;
  static auto& numbers = *new std::map<Settings, uint32_t>();
  std::lock_guard<std::mutex> lock(mutex);
  return numbers.try_emplace(settings, static_cast<uint32_t>(numbers.size())).first->second;
}

}  // namespace

void settings_changed() { settings_number.fetch_add(1); }

void send_settings(Channel& c) {
  const uint64_t seen = settings_number.load();
  const Settings now = current_settings();
  const uint64_t limit = c.memory_limit.load();
  if (now != c.settings_sent || limit != c.limit_sent) {
    RecordHeader* record = c.begin(Kind::settings, 0, sizeof(now) + 8);
    char* body = reinterpret_cast<char*>(record + 1);
    std::memcpy(body, now.bytes.data(), sizeof(now));
    std::memcpy(body + sizeof(now), &limit, 8);
    c.requests.advance(record->length);  // it travels with the record that follows
    c.settings_sent = now;
    c.limit_sent = limit;
  }
  c.settings_id = number_of(now);
  c.settings_seen = seen;
}

void limit_memory(int index, uint64_t bytes) {
  channel(index).memory_limit.store(bytes);
  settings_changed();
}

}  // namespace singularity
