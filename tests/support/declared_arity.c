/* RedisBloom, but its commands declare how many arguments they take, as those of its releases since the autumn of 2025
   do. Then the server refuses a call with too few before the module sees it, and before it looks at rights and memory.
   The environment's REDISBLOOM names the module itself. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>

typedef struct {
  int version;
  size_t history_entry, key_spec, argument;
} Version;

typedef struct {
  const Version *version;
  const char *summary, *complexity, *since;
  void *history;
  const char *tips;
  int arity;
  void *key_specs, *arguments;
} Info;

int RedisModule_OnLoad(void *context, void **arguments, int count) {
  static const Version version = {1, 16, 64, 64};
  static const struct { const char *name; int arity; } commands[] = {
    {"bf.add", 3}, {"bf.info", -2}, {"bf.madd", -3}, {"bf.mexists", -3}, {"bf.reserve", -4},
  };
  int (*find)(const char *, void *) = ((void **)context)[0];
  void *(*command)(void *, const char *);
  int (*declare)(void *, const Info *);
  void *module = dlopen(getenv("REDISBLOOM"), RTLD_NOW);
  int (*load)(void *, void **, int) = module ? dlsym(module, "RedisModule_OnLoad") : NULL;
  if (!load || load(context, arguments, count)) return 1;
  if (find("RedisModule_GetCommand", &command) || find("RedisModule_SetCommandInfo", &declare)) return 1;
  for (size_t n = 0; n < sizeof commands / sizeof *commands; n++) {
    Info info = {.version = &version, .arity = commands[n].arity};
    void *found = command(context, commands[n].name);
    if (!found || declare(found, &info)) return 1;
  }
  return 0;
}
