#include "heart.h"

#include <pthread.h>

#include <chrono>
#include <thread>

#include "guard.h"
#include "ring_server.h"

namespace singularity {
namespace {
constexpr auto kBeat = std::chrono::milliseconds(200);
}

Heart& Heart::one() {
  static Heart& instance = *new Heart();  // its thread ends with the process
  return instance;
}

void Heart::add(RingServer* ring) {
  std::lock_guard<std::mutex> lock(mutex_);
  rings_.insert(ring);
  if (running_) return;
  running_ = true;
  const SignalsBlocked blocked;
  std::thread(&Heart::run, this).detach();
}

void Heart::remove(RingServer* ring) {
  std::lock_guard<std::mutex> lock(mutex_);
  rings_.erase(ring);
}

void Heart::run() {
  pthread_setname_np(pthread_self(), "heart");
  for (;;) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (RingServer* ring : rings_) ring->beat();
    }
    std::this_thread::sleep_for(kBeat);
  }
}

}  // namespace singularity
