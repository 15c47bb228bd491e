#include "errors.h"

#include <new>

namespace singularity {

MissingStorage::MissingStorage(std::string what_happened)
    : origin(std::move(what_happened)),
      text("this tensor was never computed, because an earlier operation failed: " + origin) {}

namespace {

// The dispatcher's sentence about missing kernels goes on for lines and names a backend that the user
// never asked for.
std::string without_backends(const std::string& text) {
  static const std::string start = "Could not run '";
  const size_t end = text.find("' with arguments from", start.size());
  if (text.rfind(start, 0) || end == std::string::npos) return text;
  return text.substr(start.size(), end - start.size()) +
         ": PyTorch has no kernel of this operator for the physical device behind this session";
}

}  // namespace

Failure describe(const std::exception_ptr& error) {
  const auto of = [](Status status, const c10::Error& e, bool repeatable = true) {
    return Failure{status, e.what_without_backtrace(), "", repeatable};
  };
  try {
    std::rethrow_exception(error);
  } catch (const MissingStorage& e) {
    return {Status::runtime_error, e.text, e.origin, true};
  } catch (const c10::OutOfMemoryError& e) {
    return of(Status::out_of_memory, e, false);
  } catch (const OtherForm& e) {
    return of(Status::value_error, e, false);
  } catch (const c10::IndexError& e) {
    return of(Status::index_error, e);
  } catch (const c10::ValueError& e) {
    return of(Status::value_error, e);
  } catch (const c10::TypeError& e) {
    return of(Status::type_error, e);
  } catch (const c10::NotImplementedError& e) {  // the operator has no kernel here: torch says so itself
    return {Status::not_implemented, without_backends(e.what_without_backtrace()), "", true};
  } catch (const c10::LinAlgError& e) {
    return of(Status::linalg_error, e);
  } catch (const c10::DistBackendError& e) {
    return of(Status::distributed_error, e, false);
  } catch (const c10::Error& e) {
    return of(Status::runtime_error, e);
  } catch (const std::bad_alloc&) {
    return {Status::out_of_memory, "CUDA out of memory. The host that the device lives on has no memory left.", "", false};
  } catch (const std::exception& e) {
    return {Status::runtime_error, e.what(), "", true};
  } catch (...) {
    return {Status::runtime_error, "an unknown error in the device proxy", "", true};
  }
}

}  // namespace singularity
