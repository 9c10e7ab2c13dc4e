"""The two methods that most crawlers need, on the embedded Valkey: run it in a checkout, and compare the output."""

from urifilter_redis import UriFilter

seen = UriFilter.create("first-steps", capacity=1_000_000)
print(seen.insert("https://example.com/"))  # True: it is new, and yours to fetch
print(seen.insert("https://example.com/"))  # False: somebody has it
print(seen.unique(["https://example.com/", "https://example.com/a"]))  # ['https://example.com/a']
seen.drop()  # the end of this example: the filter is gone
