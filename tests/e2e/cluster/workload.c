/* The only program of the containers that the tests run.
 *
 *   /pause                     wait for SIGTERM
 *   /pause SECONDS [STATUS]    end by itself
 *   /pause inspect [PATH...]   print what this container has, then wait for SIGTERM
 *   /pause look [PATH...]      the same, then end
 *   /pause watch SECONDS PATH...   open the paths again and again until SIGTERM, one line for each try
 *
 * What it prints are JSON lines with a member "kind":
 *   env      name, value
 *   device   path, type (c or b), major, minor, open ("ok" or the reason): every device node below /dev, then PATHs
 *   mount    line of /proc/self/mountinfo
 *   status   line of /proc/self/status that names CPUs or memory nodes allowed, capabilities, seccomp
 *   cgroup   line of /proc/self/cgroup
 *   file     path, content: the cpuset files that this container can see
 *   end      nothing: the whole was printed
 */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 65536, FOLDERS_OPEN_MAX = 16 };

extern char **environ;

static void leave(int signal_number) {
    (void)signal_number;
    _exit(0);
}

static void put_string(const char *text) {
    putchar('"');
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\') printf("\\%c", *c);
        else if (*c < 0x20) printf("\\u%04x", *c);
        else putchar(*c);
    }
    putchar('"');
}

static void put_member(const char *name, const char *text) {
    printf(", \"%s\": ", name);
    put_string(text);
}

static void print_environment(void) {
    for (char **entry = environ; *entry; entry++) {
        char *equals = strchr(*entry, '=');
        if (!equals) continue;
        *equals = 0;
        printf("{\"kind\": \"env\"");
        put_member("name", *entry);
        put_member("value", equals + 1);
        puts("}");
        *equals = '=';
    }
}

/* Opened for reading and writing, as a driver's user would; a terminal must neither block nor become ours. */
static void print_device(const char *path) {
    struct stat node;
    printf("{\"kind\": \"device\"");
    put_member("path", path);
    if (stat(path, &node) == 0) {
        const char *type = S_ISCHR(node.st_mode) ? "c" : S_ISBLK(node.st_mode) ? "b" : "-";
        printf(", \"type\": \"%s\", \"major\": %u, \"minor\": %u", type, major(node.st_rdev), minor(node.st_rdev));
    }
    int file = open(path, O_RDWR | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    put_member("open", file < 0 ? strerror(errno) : "ok");
    if (file >= 0) close(file);
    puts("}");
}

static int print_if_device(const char *path, const struct stat *node, int type, struct FTW *place) {
    (void)type;
    (void)place;
    if (S_ISCHR(node->st_mode) || S_ISBLK(node->st_mode)) print_device(path);
    return 0;
}

/* Each line of a file that begins with one of `wanted` (NULL: each line). */
static void print_lines(const char *kind, const char *path, const char *const *wanted) {
    static char line[LINE_MAX_BYTES];
    FILE *file = fopen(path, "re");
    if (!file) return;
    while (fgets(line, sizeof line, file)) {
        int is_wanted = !wanted;
        for (const char *const *start = wanted; start && *start; start++)
            is_wanted |= !strncmp(line, *start, strlen(*start));
        if (!is_wanted) continue;
        line[strcspn(line, "\n")] = 0;
        printf("{\"kind\": \"%s\"", kind);
        put_member("line", line);
        puts("}");
    }
    fclose(file);
}

static void print_content(const char *path) {
    static char content[LINE_MAX_BYTES];
    FILE *file = fopen(path, "re");
    if (!file) return;
    content[fread(content, 1, sizeof content - 1, file)] = 0;
    content[strcspn(content, "\n")] = 0;
    fclose(file);
    printf("{\"kind\": \"file\"");
    put_member("path", path);
    put_member("content", content);
    puts("}");
}

static void inspect(char **paths) {
    static const char *const status[] = {"Cpus_allowed_list:", "Mems_allowed_list:", "CapEff:", "CapBnd:",
                                         "NoNewPrivs:",        "Seccomp:",           NULL};
    static const char *const cpusets[] = {
        "/sys/fs/cgroup/cpuset.cpus.effective", "/sys/fs/cgroup/cpuset.mems.effective",
        "/sys/fs/cgroup/cpuset/cpuset.cpus", "/sys/fs/cgroup/cpuset/cpuset.mems", NULL};
    print_environment();
    nftw("/dev", print_if_device, FOLDERS_OPEN_MAX, FTW_PHYS);
    for (; *paths; paths++) print_device(*paths);
    print_lines("mount", "/proc/self/mountinfo", NULL);
    print_lines("status", "/proc/self/status", status);
    print_lines("cgroup", "/proc/self/cgroup", NULL);
    for (const char *const *path = cpusets; *path; path++) print_content(*path);
    puts("{\"kind\": \"end\"}");
    fflush(stdout);
}

static void sleep_for(const char *seconds) {
    double left_s = atof(seconds);
    usleep((useconds_t)(left_s * 1e6));
}

int main(int argc, char **argv) {
    signal(SIGTERM, leave);
    signal(SIGINT, leave);
    setvbuf(stdout, NULL, _IOFBF, LINE_MAX_BYTES);
    const char *verb = argc > 1 ? argv[1] : "";
    if (!strcmp(verb, "inspect")) {
        inspect(argv + 2);
    } else if (!strcmp(verb, "look")) {
        inspect(argv + 2);
        return 0;
    } else if (!strcmp(verb, "watch") && argc > 3) {
        for (;; sleep_for(argv[2])) {
            for (char **path = argv + 3; *path; path++) print_device(*path);
            fflush(stdout);
        }
    } else if (argc > 1) {
        sleep_for(verb);
        return argc > 2 ? atoi(argv[2]) : 0;
    }
    for (;;) pause();
}
