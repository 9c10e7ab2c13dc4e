"""URLs as the bench inserts them. Scripts import it as ``urls``, the package as ``bench.urls``."""


def url(number: int) -> bytes:
    """Return a URL of 66 bytes, another one for each number below 10**12."""
    return b"https://www.example.com/news/2026/11/%012d/" % number + b"an-article-of-it"
