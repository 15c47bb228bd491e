// What Python sees of the device half: the control process drives RingServer objects.
#include <torch/csrc/utils/pybind.h>

#include "device/src/ranks/crew.h"
#include "graphs.h"
#include "kernels.h"
#include "device/src/memory/memory.h"
#include "device/src/exchange/mirror.h"
#include "native/bindings.h"
#include "device/src/ring/ring_server.h"
#include "device/src/recovery/stage.h"
#include "device/src/memory/swap.h"

namespace singularity {
namespace {

namespace py = pybind11;
using NoGil = py::call_guard<py::gil_scoped_release>;

py::dict as_dict(const RingStats& s) {
  py::dict d;
  d["records"] = s.records;
  d["operations"] = s.operations;
  d["last_record_ns"] = s.last_record_ns;
  d["done_seq"] = s.done_seq;
  d["journal_bytes"] = s.journal_bytes;
  d["snapshots"] = s.snapshots;
  d["worker_waiting"] = s.worker_waiting;
  d["recovery"] = s.recovery;
  d["recovery_off"] = s.recovery_off;
  d["broken"] = s.broken;
  d["running"] = s.running;
  static constexpr const char* kActivities[] = {"idle", "running", "blocked", "waiting"};
  d["activity"] = kActivities[static_cast<size_t>(s.activity)];
  d["waits_for"] = s.waits_for;
  d["virtual_device"] = s.virtual_device;
  d["stands"] = s.stands;
  d["skipped"] = s.skipped;
  d["pending"] = s.pending;
  d["blocked"] = s.blocked;
  d["sync_points"] = s.sync_points;
  d["turn_wait_ns"] = s.turn_wait_ns;
  py::list groups;
  for (const GroupStats& g : s.groups) {
    py::dict one;
    one["id"] = g.id;
    one["name"] = g.name;
    one["number"] = g.number;
    one["rank"] = g.rank;
    one["size"] = g.size;
    one["contributed"] = g.contributed;
    one["consumed"] = g.consumed;
    one["sent"] = g.sent;
    one["received"] = g.received;
    one["asked"] = g.asked;
    groups.append(one);
  }
  d["groups"] = groups;
  return d;
}

}  // namespace

void bind_device(py::module_& m) {
  // Lives as long as the process, as the types in it do.
  static PyObject* state_error = PyErr_NewException("_singularity_native.StateError", PyExc_RuntimeError, nullptr);
  static PyObject* refused = PyErr_NewException("_singularity_native.Refused", PyExc_RuntimeError, nullptr);
  static PyObject* stale = PyErr_NewException("_singularity_native.Stale", refused, nullptr);
  m.attr("StateError") = py::handle(state_error);
  m.attr("Refused") = py::handle(refused);
  m.attr("Stale") = py::handle(stale);
  py::register_local_exception_translator([](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const FileError& e) {
      py::tuple arguments = py::make_tuple(e.number, e.text, e.path);
      PyErr_SetObject(PyExc_OSError, arguments.ptr());
    } catch (const StateError& e) {
      PyErr_SetString(state_error, e.what());
    } catch (const Stale& e) {
      PyErr_SetString(stale, e.what());
    } catch (const Refused& e) {
      PyErr_SetString(refused, e.what());
    }
  });

  m.def("install_capacity", &install_capacity, py::arg("bytes"));
  m.def("check_arguments_of_kernels", &check_arguments_of_kernels, "Once, before a ring is served.");
  m.def("set_graph_maker", [](py::object make) { set_graph_maker(make.ptr()); }, py::arg("make"));
  m.def("name_device", &name_device, py::arg("device"), "Which physical device this process serves; once, before a ring is.");
  m.def("published_bytes", &published_bytes, "Of what ranks brought to collectives and other proxies read.");
  m.def("turn_switches", [] { return Slicer::one().switches(); }, "How often the device passed to another rank.");
  m.def("memory", [](const std::string& device) {
    const Memory memory = memory_of(c10::Device(device));
    return py::make_tuple(memory.current, memory.peak, memory.capacity);
  });

  m.def(
      "squashing",
      [] {
        const CrewStats s = Crew::one().stats();
        py::dict d;
        d["state"] = s.state;
        d["why_off"] = s.why_off;
        d["executed"] = s.executed;
        d["skipped"] = s.skipped;
        d["windows"] = s.windows;
        d["comparisons"] = s.comparisons;
        d["merged_bytes"] = s.merged_bytes;
        const SwapStats swapped = Swap::one().stats();
        d["swapped_out_bytes"] = swapped.out_bytes;
        d["swapped_back_bytes"] = swapped.back_bytes;
        d["away_bytes"] = swapped.away_bytes;
        return d;
      },
      "What the rings of this proxy share; never waits for long.");
  m.def("check_squashing_every", [](uint64_t windows) { Crew::one().set_check_every(windows); }, py::arg("windows"), NoGil());
  m.def("break_identity_of", &break_identity_of, py::arg("operator"),
        "For tests: calls of this operator get the same identity whatever their values are.");
  m.def("identity_ns", &lineage_ns, py::arg("records"), NoGil(), "Mean nanoseconds that content identity adds to a record.");
  m.def(
      "staged_copy",
      [](const std::string& name, const py::bytes& data, size_t slots, uint64_t slot_bytes) {
        const std::string bytes = data;
        std::string back(bytes.size(), '\0');
        bool pinned = false;
        {
          py::gil_scoped_release no_gil;
          c10::Device device(name);
          c10::Allocator* allocator = c10::GetAllocator(device.type());
          const c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<int64_t>(bytes.size()),
                                     allocator->allocate(bytes.size()), allocator, false);
          Stage stage(device, slots, slot_bytes);
          stage.send(storage, 0, bytes.size(), [&](char* to, uint64_t at, uint64_t n) { std::memcpy(to, bytes.data() + at, n); });
          stage.fetch(storage, 0, bytes.size(), [&](const char* from, uint64_t at, uint64_t n) { std::memcpy(back.data() + at, from, n); });
          pinned = stage.pinned();
        }
        return py::make_tuple(py::bytes(back), pinned);
      },
      py::arg("device"), py::arg("data"), py::arg("slots"), py::arg("slot_bytes"),
      "Bytes to the device and back through pinned buffers, as copies of a ring go; (bytes, were they pinned).");

  // Made and ended without the GIL: another ring may wait for it inside a graph, and this one for that ring.
  struct WithoutGil {
    void operator()(RingServer* ring) const {
      const py::gil_scoped_release no_gil;
      delete ring;
    }
  };
  using Held = std::unique_ptr<RingServer, WithoutGil>;
  py::class_<Mirror>(m, "Mirror", "One end of a bridge between the exchange files of two folders; see device/src/exchange/mirror.h.")
      .def(py::init<std::string, uint32_t>(), py::arg("folder"), py::arg("part"))
      .def("bell", &Mirror::bell)
      .def("rung", &Mirror::rung)
      .def("changes", [](Mirror& mirror, uint32_t peer, uint64_t most) { return py::bytes(mirror.changes(peer, most)); },
           py::arg("peer"), py::arg("most"))
      .def("forget", &Mirror::forget, py::arg("peer"))
      .def("apply",
           [](Mirror& mirror, uint32_t peer, const py::buffer& told) {
             const py::buffer_info all = told.request();
             mirror.apply(peer, {static_cast<const char*>(all.ptr), static_cast<size_t>(all.size * all.itemsize)});
           },
           py::arg("peer"), py::arg("told"))
      .def("away", &Mirror::away, py::arg("peer"))
      .def("ended", &Mirror::ended, py::arg("peer"));

  py::class_<RingServer, Held>(m, "RingServer")
      .def(py::init([](std::string path, std::string prefix, std::string device, uint64_t journal_bytes, uint64_t epoch,
                       uint64_t capacity, int threads, uint64_t journal_records, uint64_t give_up_seq, uint64_t deaths) {
             RingOptions options;
             options.path = std::move(path);
             options.prefix = std::move(prefix);
             options.device = std::move(device);
             options.journal_bytes = journal_bytes;
             options.journal_records = journal_records;
             options.give_up_seq = give_up_seq;
             options.deaths = deaths;
             options.epoch = epoch;
             options.capacity = capacity;
             options.threads = threads;
             const py::gil_scoped_release no_gil;
             return Held(new RingServer(std::move(options)));
           }),
           py::arg("path"), py::arg("prefix"), py::arg("device"), py::arg("journal_bytes"), py::arg("epoch"),
           py::arg("capacity"), py::arg("threads"), py::arg("journal_records") = 0, py::arg("give_up_seq") = 0,
           py::arg("deaths") = 0)
      .def("start",
           [](RingServer& ring) {
             const auto started = ring.start();
             return std::make_tuple(started.restored_bytes, started.replayed_records, started.given_up);
           },
           NoGil())
      .def("set_facts",
           [](RingServer& ring, std::string name, uint64_t memory, uint64_t cudnn_version, uint32_t capability,
              uint32_t multiprocessors) {
             ring.set_facts({std::move(name), memory, cudnn_version, capability, multiprocessors});
           },
           py::arg("name"), py::arg("memory"), py::arg("cudnn_version"), py::arg("capability"), py::arg("multiprocessors"))
      .def("request_pause", &RingServer::request_pause, NoGil())
      .def("wait_paused", &RingServer::wait_paused, NoGil())
      .def("resume", &RingServer::resume, NoGil())
      .def("prepare_park", &RingServer::prepare_park, NoGil())
      .def("commit_park", &RingServer::commit_park, NoGil())
      .def("leave", &RingServer::leave, NoGil())
      .def("abandon_park", &RingServer::abandon_park, NoGil())
      .def("hold",
           [](RingServer& ring, std::map<std::string, uint64_t> targets, uint64_t grace_ns) {
             ring.hold(std::move(targets), grace_ns);
           },
           py::arg("targets"), py::arg("grace_ns"), NoGil())
      .def("let_go", &RingServer::let_go, NoGil())
      .def("settle_collectives", &RingServer::settle_collectives, NoGil())
      .def("step_aside", &RingServer::step_aside, NoGil())
      .def("come_back", &RingServer::come_back, py::arg("epoch"), NoGil())
      .def("save_copy", &RingServer::save_copy, py::arg("path"), py::arg("durable"), NoGil())
      .def("stop", &RingServer::stop, py::arg("forget"), NoGil())
      .def("identities", &RingServer::identities, "Storage -> identity, for tests; only while paused.")
      .def("keep_lineage", &RingServer::keep_lineage, "For tests; only while paused.")
      .def("stats", [](RingServer& ring) { return as_dict(ring.stats()); });
}

}  // namespace singularity
