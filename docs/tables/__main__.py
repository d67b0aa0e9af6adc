"""Write the generated tables of docs/ and the help texts; see docs/tables/renewed.py."""

from docs.tables.help_texts import help_texts
from docs.tables.renewed import TABLES, write

if __name__ == "__main__":
    write(TABLES)
    for file, text in help_texts():
        file.write_text(text, encoding="utf-8")
