// What device proxies do together: collectives, exchange, mirrors; as one translation unit:
// torch's headers take longer to compile than these files.
#include "device/src/ranks/collective.cpp"
#include "device/src/ranks/collectives.cpp"
#include "device/src/ranks/contribution.cpp"
#include "device/src/ranks/crew.cpp"
#include "device/src/exchange/exchange.cpp"
#include "device/src/exchange/exchange_files.cpp"
#include "device/src/ranks/identity.cpp"
#include "device/src/exchange/mirror.cpp"
