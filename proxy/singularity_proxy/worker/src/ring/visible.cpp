#include "visible.h"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <sstream>

#include "channel.h"

namespace singularity {
namespace {

std::atomic<bool> fixed{false};

// FNV-1a, 64 bits.
uint64_t hash_of(const std::string& text) {
  uint64_t hash = 14695981039346656037ull;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return hash;
}

// The device whose UUID begins so; -1 where there is none, or more than one.
int device_named(const std::string& beginning, int count) {
  int found = -1;
  for (int i = 0; i < count; i++) {
    if (("GPU-" + device_uuid(i)).compare(0, beginning.size(), beginning) != 0) continue;
    if (found >= 0) return -1;
    found = i;
  }
  return found;
}

// As strtoul reads it: what follows the digits does not count.
int device_at(std::string word, int count) {
  word.erase(0, word.find_first_not_of(" \t"));
  word.erase(word.find_last_not_of(" \t") + 1);
  if (word.compare(0, 4, "GPU-") == 0) return device_named(word, count);
  char* end = nullptr;
  const long number = std::strtol(word.c_str(), &end, 10);
  return end == word.c_str() || number < 0 || number >= count ? -1 : static_cast<int>(number);
}

std::vector<int> choose_now() { return choose_visible(std::getenv("CUDA_VISIBLE_DEVICES"), session_device_count()); }

const std::vector<int>& visible() {
  static const std::vector<int>& chosen = *[] {
    auto* made = new std::vector<int>(choose_now());  // never destroyed: tensors may outlive main
    fixed.store(true);
    return made;
  }();
  return chosen;
}

}  // namespace

std::vector<int> choose_visible(const char* chosen, int count) {
  std::vector<int> found;
  if (!chosen) {
    found.resize(static_cast<size_t>(count));
    std::iota(found.begin(), found.end(), 0);
    return found;
  }
  std::stringstream words(chosen);
  for (std::string word; std::getline(words, word, ',');) {
    const int device = device_at(word, count);
    if (device < 0) break;
    if (std::find(found.begin(), found.end(), device) != found.end()) return {};
    found.push_back(device);
  }
  return found;
}

int session_device_count() {
  const char* text = std::getenv("SINGULARITY_DEVICES");
  return std::min(std::max(text ? std::atoi(text) : 1, 1), kMaxDevices);
}

int device_count() { return static_cast<int>(visible().size()); }

int expected_device_count() { return fixed.load() ? device_count() : static_cast<int>(choose_now().size()); }

int virtual_device(int index) { return visible().at(static_cast<size_t>(index)); }

std::string device_uuid(int virtual_device) {
  const char* session = std::getenv("SINGULARITY_SESSION");
  const std::string name = session ? session : "";
  const uint64_t high = hash_of(name), low = hash_of(name + "/" + std::to_string(virtual_device));
  char text[37];
  std::snprintf(text, sizeof(text), "%08x-%04x-8%03x-8%03x-%012llx", static_cast<unsigned>(high >> 32),
                static_cast<unsigned>(high >> 16 & 0xFFFF), static_cast<unsigned>(high & 0xFFF),
                static_cast<unsigned>(low >> 48 & 0xFFF), static_cast<unsigned long long>(low & 0xFFFFFFFFFFFFull));
  return text;
}

}  // namespace singularity
