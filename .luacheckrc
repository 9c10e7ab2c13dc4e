-- For the composed scripts, as the server runs them.
std = "lua51"
read_globals = { "redis", "cmsgpack", "struct", "KEYS", "ARGV" }
max_line_length = false -- the lists of k words
ignore = {
  "212/d.", -- a layout need not use every word of the digest
  "211/set_counters", -- scripts that only look do not change counters
  "2.1/[%w_]+", -- an included file gives more locals than every script needs
  "311/K", "4.1/d.", -- likewise; and a test uses the words of the digest up, so it has its own
  "311/oldest_age", -- nor need every script the highest age
  "311/packed", -- a reclaim is asked for no items
  "311/d.", -- the last group taken off a word leaves a rest
}
