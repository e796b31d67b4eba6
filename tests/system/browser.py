"""Airflow's pages in a headless Chromium, as a person uses them."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium.common.exceptions import (
    ElementClickInterceptedException,
    NoSuchElementException,
    StaleElementReferenceException,
)
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support import expected_conditions
from selenium.webdriver.support.ui import WebDriverWait

from demo.airflow_processes import AirflowProcesses

TIMEOUT_SECONDS = 180.0
DIALOG = "//*[@role='dialog']"
_PASSING = (NoSuchElementException, StaleElementReferenceException, ElementClickInterceptedException)


def missing() -> str | None:
    """What of a browser this machine lacks, and the remedy; None when all is here."""
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    if not absent:
        return None
    return f"no {' and no '.join(absent)} on this machine: apt-get install chromium chromium-driver"


class Pages:
    """What a person does on Airflow's pages; every step waits until the page is ready for it."""

    def __init__(self, chrome: Chrome, url: str) -> None:
        self._chrome = chrome
        self._url = url
        # A page that reloads by itself, or is still being built, takes elements away.
        self._wait = WebDriverWait(chrome, TIMEOUT_SECONDS, ignored_exceptions=_PASSING)

    def sign_in(self, user: str, password: str) -> None:
        self.visit("auth/login/")
        self._ready(By.NAME, "username").send_keys(user)
        self._ready(By.NAME, "password").send_keys(password)
        self.press("Sign in")
        self._wait.until_not(expected_conditions.url_contains("auth/login"))

    def visit(self, path: str) -> None:
        self._chrome.get(f"{self._url}/{path}")

    def enter_frame(self) -> None:
        self._wait.until(expected_conditions.frame_to_be_available_and_switch_to_it((By.TAG_NAME, "iframe")))

    def leave_frame(self) -> None:
        self._chrome.switch_to.default_content()

    def run(self, script: str) -> Any:
        return self._chrome.execute_script(script)

    def reported_errors(self) -> list[str]:
        """What the browser has refused or found wrong since it was asked last, without Airflow's own."""
        return [
            entry["message"]
            for entry in self._chrome.get_log("browser")
            # That the frame can escape its sandbox is a warning of how Airflow makes it.
            if "/snowpipe/" in entry["message"] and "sandboxing" not in entry["message"]
        ]

    def picture(self, file: Path, width: int, height: int) -> None:
        self._chrome.set_window_size(width, height)
        self._chrome.save_screenshot(str(file))

    def press(self, label: str, within: str = "") -> None:
        self._click(within + _button(label))

    def follow(self, label: str) -> None:
        self._click(f"//a[normalize-space()='{label}']")

    def choose(self, option: str) -> None:
        """Type into the dialog's list, and take the option of that name."""
        self._ready(By.XPATH, f"{DIALOG}//input[@role='combobox']").send_keys(option)
        self._click(f"//*[@role='option'][normalize-space()='{option}']")

    def fill(self, texts: Mapping[str, str]) -> None:
        """Paste texts into the fields of these names, instead of what they hold.

        A form that is still being built may empty a field again, or take the focus away: as a person
        does, this checks all of them when it is through, and fills in again what does not hold its text.
        """

        def filled(_: Chrome) -> bool:
            wrong = {name: text for name, text in texts.items() if not self._holds(name, text)}
            for name, text in wrong.items():
                field = self._ready(By.NAME, name)
                field.clear()
                field.click()
                self._chrome.execute_cdp_cmd("Input.insertText", {"text": text})
            return not wrong

        self._wait.until(filled, f"no {', '.join(texts)} to fill in")

    def field(self, name: str) -> WebElement:
        return self._ready(By.NAME, name)

    def text_of(self, xpath: str) -> str:
        """An element's text; it is searched again when the page takes it away meanwhile."""
        found: list[str] = []

        def read(_: Chrome) -> bool:
            found.append(self._ready(By.XPATH, xpath).text)
            return True

        self._wait.until(read, f"no {xpath}")
        return found[-1]

    def wait_until_at(self, path: str) -> None:
        self._wait.until(expected_conditions.url_contains(f"{self._url}/{path}"))

    def wait_until_shown(self, *xpaths: str) -> None:
        for xpath in xpaths:
            shown = expected_conditions.visibility_of_element_located((By.XPATH, xpath))
            self._wait.until(shown, f"no {xpath}")

    def wait_until_gone(self, xpath: str) -> None:
        self._wait.until(expected_conditions.invisibility_of_element_located((By.XPATH, xpath)))

    def _click(self, xpath: str) -> None:
        def clicked(_: Chrome) -> bool:
            self._ready(By.XPATH, xpath).click()
            return True

        self._wait.until(clicked, f"no {xpath} to click")

    def _holds(self, name: str, text: str) -> bool:
        # A field of one line takes the line ends out of what is pasted.
        value = self._ready(By.NAME, name).get_attribute("value") or ""
        return value.split() == text.split() or value == text.replace("\n", "")

    def _ready(self, by: str, what: str) -> WebElement:
        found = self._wait.until(expected_conditions.element_to_be_clickable((by, what)), f"no {what}")
        assert isinstance(found, WebElement)
        return found


def _button(label: str) -> str:
    return f"//button[@aria-label='{label}' or normalize-space()='{label}']"


@contextmanager
def opened(airflow: AirflowProcesses) -> Iterator[Pages]:
    """A browser of its own, where nobody has signed in."""
    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    options.add_argument("--headless=new")
    options.add_argument("--window-size=1400,1600")
    options.add_argument("--no-proxy-server")
    if os.geteuid() == 0:
        # Chromium does not start as root with its sandbox, and a container's user is often root.
        options.add_argument("--no-sandbox")
    chrome = Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield Pages(chrome, airflow.url)
    finally:
        chrome.quit()
