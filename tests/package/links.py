"""Fails where a page links to a file that the tree has not, or where a row of the README's feature tables names no test.

    links.py <top folder>
"""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
pages = [*root.glob("*.md"), *(p for folder in ("bench", "examples", "tests") for p in (root / folder).rglob("*.md"))]
wrong, links, rows = [], 0, 0
for page in pages:
    text = re.sub(r"^( {4}|```).*$", "", page.read_text(), flags=re.M)  # code has brackets of its own
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if "://" in target:
            continue
        links += 1
        if not (page.parent / target).exists():
            wrong.append(f"{page.relative_to(root)}: {target} does not exist")

table = False
for line in (root / "README.md").read_text().splitlines():
    if re.match(r"\| \| (double|evenkeel)", line):
        table = True
    elif not line.startswith("|"):
        table = False
    elif table and not line.startswith("|---"):
        rows += 1
        if "](tests/" not in line:
            wrong.append(f"README.md: no test in the row {line}")

if links < 100 or rows < 20:
    wrong.append(f"only {links} links and {rows} rows found")
print(f"{links} links, {rows} rows of features")
sys.exit("\n".join(wrong) or 0)
