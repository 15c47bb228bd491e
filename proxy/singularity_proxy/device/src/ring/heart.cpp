#include "heart.h"

#include <pthread.h>

#include <chrono>
#include <functional>
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
  {
    std::lock_guard<std::mutex> lock(gauged_.mutex);
    gauged_.all.insert(ring);
  }
  std::lock_guard<std::mutex> lock(beating_.mutex);
  beating_.all.insert(ring);
  if (running_) return;
  running_ = true;
  const SignalsBlocked blocked;
  std::thread(&Heart::run, this, "heart", std::ref(beating_), &RingServer::beat).detach();
  std::thread(&Heart::run, this, "gauge", std::ref(gauged_), &RingServer::gauge).detach();
}

void Heart::remove(RingServer* ring) {
  for (Rings* rings : {&beating_, &gauged_}) {
    std::lock_guard<std::mutex> lock(rings->mutex);
    rings->all.erase(ring);
  }
}

void Heart::run(const char* name, Rings& rings, void (RingServer::*work)()) {
  pthread_setname_np(pthread_self(), name);
  for (;;) {
    {
      std::lock_guard<std::mutex> lock(rings.mutex);
      for (RingServer* ring : rings.all) (ring->*work)();
    }
    std::this_thread::sleep_for(kBeat);
  }
}

}  // namespace singularity
