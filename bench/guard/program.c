/* Lets a program that starts itself anew run under valgrind, where /proc/self/exe is valgrind: GUARD_PROGRAM is started instead.
   Preloaded into what is measured, and part of nothing else. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef const posix_spawn_file_actions_t *actions;
typedef const posix_spawnattr_t *attributes;
typedef int spawner(pid_t *, const char *, actions, attributes, char *const[], char *const[]);

static const char *meant(const char *path) {
    const char *program = getenv("GUARD_PROGRAM");
    return program && strcmp(path, "/proc/self/exe") == 0 ? program : path;
}

int posix_spawn(pid_t *pid, const char *path, actions todo, attributes how, char *const argv[], char *const env[]) {
    return ((spawner *)dlsym(RTLD_NEXT, "posix_spawn"))(pid, meant(path), todo, how, argv, env);
}

int posix_spawnp(pid_t *pid, const char *path, actions todo, attributes how, char *const argv[], char *const env[]) {
    return ((spawner *)dlsym(RTLD_NEXT, "posix_spawnp"))(pid, meant(path), todo, how, argv, env);
}

int execvp(const char *path, char *const argv[]) {
    return ((int (*)(const char *, char *const[]))dlsym(RTLD_NEXT, "execvp"))(meant(path), argv);
}

int execve(const char *path, char *const argv[], char *const env[]) {
    return ((int (*)(const char *, char *const[], char *const[]))dlsym(RTLD_NEXT, "execve"))(meant(path), argv, env);
}
