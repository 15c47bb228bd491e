// What device proxies do together: collectives, exchange, mirrors; as one translation unit:
// torch's headers take longer to compile than these files.
#include "device/src/collective.cpp"
#include "device/src/collectives.cpp"
#include "device/src/contribution.cpp"
#include "device/src/crew.cpp"
#include "device/src/exchange.cpp"
#include "device/src/exchange_files.cpp"
#include "device/src/identity.cpp"
#include "device/src/mirror.cpp"
