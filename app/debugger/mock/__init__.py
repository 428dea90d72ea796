"""The page Mock: a mock interview in the browser, over `interview.mock.session`."""
