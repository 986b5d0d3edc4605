"""Take the README's pictures of two reports, in a headless Chromium.

python docs/pictures/make.py runs/quickstart/out/report.html runs/quickstart/process/report.html

The first report gives ``report.png``, the second ``inspector.png``.
"""

import sys
import time
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

HERE = Path(__file__).parent
SIZE = (1200, 940)


def main() -> None:
    """Open both reports and save what is seen."""
    curves, groups = map(Path, sys.argv[1:3])
    options = Options()
    options.binary_location = "/usr/bin/chromium"
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    try:
        width, height = SIZE
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        for report, anchor, name in ((curves, "", "report.png"), (groups, "#inspector", "inspector.png")):
            driver.get(report.resolve().as_uri() + anchor)
            time.sleep(2)
            if anchor:
                driver.execute_script(
                    "const best = [...document.querySelectorAll('#inspector-body button')]"
                    ".filter(b => /mean 0\\.[3-7]/.test(b.textContent)); if (best[0]) best[0].click();"
                    "document.getElementById('inspector').scrollIntoView()"
                )
                time.sleep(1)
            driver.save_screenshot(str(HERE / name))
    finally:
        driver.quit()


if __name__ == "__main__":
    main()
