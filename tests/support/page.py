"""The page of the service, as a user drives it."""

from __future__ import annotations

from support.browser import Tab, expect


def rows(page):
    return page.locator("#filters tbody tr")


def visit(page, name: str):
    """Go to the page of a filter, and return the browser's page."""
    page.get_by_role("link", name=name, exact=True).click()
    expect(page.locator("#name")).to_have_text(name)
    expect(page.locator("#filter")).to_be_visible()  # until then the tables are those of the filter before it
    expect(page.locator("#slices tbody tr")).not_to_have_count(0)
    return page


def sign_in(tab: Tab, secret: str):
    """Open the page with a token, and return it."""
    tab.allow("status of 401")
    page = tab.open()
    field = page.get_by_label("Token", exact=True)
    field.fill(secret)
    field.press("Enter")
    expect(field).to_be_hidden()
    return page
