#include "interrupts.h"

#include <Python.h>
#include <pthread.h>
#include <torch/csrc/Exceptions.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <mutex>

namespace singularity {
namespace {

std::atomic<pthread_t> main_thread{};
std::atomic<bool> interrupted{false};
std::mutex mutex;  // of the two below
int catching = 0;  // threads that want SIGINT
struct sigaction python_action;
thread_local bool this_catches = false;

struct Gil {
  PyGILState_STATE state = PyGILState_Ensure();
  ~Gil() { PyGILState_Release(state); }
};

[[noreturn]] void raise_python_error() {  // with the GIL, and an error set
  python_error error;
  error.persist();
  throw std::move(error);
}

bool is_autograd_thread() {
  static thread_local const bool is = [] {
    char name[16] = "";
    return !pthread_getname_np(pthread_self(), name, sizeof(name)) && !std::strncmp(name, "pt_autograd_", 12);
  }();
  return is;
}

// Whether the main thread's innermost Python function is the one that waits for the autograd engine.
bool main_is_in_backward() {
  PyObject* frames = PyObject_CallMethod(PyImport_AddModule("sys"), "_current_frames", nullptr);
  PyObject* ident = PyLong_FromUnsignedLong(static_cast<unsigned long>(main_thread.load()));
  bool is = false;
  PyObject* frame = frames && ident ? PyDict_GetItem(frames, ident) : nullptr;
  if (frame && PyFrame_Check(frame)) {
    PyCodeObject* code = PyFrame_GetCode(reinterpret_cast<PyFrameObject*>(frame));
    const char* name = PyUnicode_AsUTF8(code->co_name);
    is = name && !std::strcmp(name, "_engine_run_backward");
    Py_DECREF(code);
  }
  Py_XDECREF(ident);
  Py_XDECREF(frames);
  PyErr_Clear();
  return is;
}

bool python_would_raise_keyboard_interrupt() {
  PyObject* module = PyImport_ImportModule("signal");
  PyObject* handler = module ? PyObject_CallMethod(module, "getsignal", "i", SIGINT) : nullptr;
  PyObject* usual = module ? PyObject_GetAttrString(module, "default_int_handler") : nullptr;
  const bool is = handler && handler == usual;
  Py_XDECREF(usual);
  Py_XDECREF(handler);
  Py_XDECREF(module);
  PyErr_Clear();
  return is;
}

void note_interrupt(int) { interrupted.store(true); }

void start_catching() {
  std::lock_guard<std::mutex> lock(mutex);
  this_catches = true;
  if (catching++) return;
  struct sigaction ours{};
  ours.sa_handler = &note_interrupt;
  sigaction(SIGINT, &ours, &python_action);
}

}  // namespace

void set_main_thread(uint64_t ident) { main_thread.store(static_cast<pthread_t>(ident)); }

void check_signals() {
  if (!Py_IsInitialized()) return;
  if (pthread_equal(pthread_self(), main_thread.load())) {
    const Gil gil;
    if (PyErr_CheckSignals()) raise_python_error();
    return;
  }
  if (!is_autograd_thread()) return;
  if (!this_catches) {
    const Gil gil;
    if (main_is_in_backward()) start_catching();
    return;
  }
  if (!interrupted.exchange(false)) return;
  const Gil gil;
  if (!python_would_raise_keyboard_interrupt()) {
    PyErr_SetInterrupt();  // a handler of the user's: the main thread runs it when backward() is over
    return;
  }
  PyErr_SetNone(PyExc_KeyboardInterrupt);
  raise_python_error();
}

void end_of_wait() {
  if (__builtin_expect(!this_catches, 1)) return;
  this_catches = false;
  std::lock_guard<std::mutex> lock(mutex);
  if (--catching) return;
  sigaction(SIGINT, &python_action, nullptr);
  if (interrupted.exchange(false)) PyErr_SetInterrupt();  // nobody has seen it yet
}

}  // namespace singularity
