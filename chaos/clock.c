/* A wall clock that can be set while a program runs: as many seconds ahead as the file CHAOS_AHEAD says. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    static int file = -1;
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (result || clock != CLOCK_REALTIME) return result;
    if (file < 0) {
        const char *path = getenv("CHAOS_AHEAD");
        if (path) file = open(path, O_RDONLY | O_CLOEXEC);
    }
    char text[32] = {0};
    if (file >= 0 && pread(file, text, sizeof text - 1, 0) > 0) now->tv_sec += atoll(text);
    return result;
}
