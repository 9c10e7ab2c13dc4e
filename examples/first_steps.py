"""The methods that most crawlers need, on the embedded Valkey: run it in a checkout, and compare the output."""

from urifilter_redis import UriFilter

seen = UriFilter.create("first-steps", capacity=1_000_000)

print(seen.insert("https://example.com/"))  # True: it is new, and yours to fetch
print(seen.insert("https://example.com/"))  # False: somebody has it
print(seen.unique(["https://example.com/", "https://example.com/a"]))  # ['https://example.com/a']: the new ones
print("https://example.com/a" in seen)  # True, and nothing was inserted
print(seen.forget(["https://example.com/a"]))  # [True]: it was there, and is new once more

with seen.claims() as mine:  # for pages that must not be lost with a crawler that dies
    print(mine.unique(["https://example.com/b"]))  # ['https://example.com/b']: in hand, for this crawler alone
    print(mine.commit(["https://example.com/b"]))  # [True]: fetched, and final; without this another crawler gets it

seen.drop()  # the end of this example: the filter is gone
