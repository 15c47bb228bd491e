#pragma once

#include <string>
#include <vector>

namespace singularity {

// Reads CUDA_VISIBLE_DEVICES as CUDA does (CUDA C++ Programming Guide, "CUDA Environment Variables"): the
// session's own numbers of the devices that it chooses of `count`, in its order. A number or name that is
// none ends the list, one that stands in it twice empties it; none (nullptr) chooses all.
std::vector<int> choose_visible(const char* chosen, int count);

int session_device_count();     // that the session has
int device_count();             // that this process sees; the first use of a device fixes it
int expected_device_count();    // the same by the environment as it is now, as long as nothing has fixed it
int virtual_device(int index);  // the session's own number of cuda:INDEX, which has to be there
std::string device_uuid(int virtual_device);  // RFC 9562, version 8: the same in all processes of the session

}  // namespace singularity
