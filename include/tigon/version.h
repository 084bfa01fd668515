/* The one place that holds Tigon's version; the build system reads it from here. */
#ifndef TIGON_VERSION_H
#define TIGON_VERSION_H

#define TIGON_VERSION_MAJOR 0
#define TIGON_VERSION_MINOR 1
#define TIGON_VERSION_PATCH 0

#endif
