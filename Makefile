.DEFAULT_GOAL := help
.PHONY: help book pdf picture preview links mystmd test quick check structure release bench clean

help:  ## list these commands
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 18

book:  ## build the book; open book/_build/html/index.html
	jupyter-book build book -W --keep-going -n

pdf: book  ## make one PDF: book/_build/attention-from-the-ground-up.pdf
	python book/one_pdf.py

picture: book  ## copy the first page's figure to where the README shows it
	cd book/_build/html && set -- $$(grep -o '_images/[0-9a-f]*\(-dark\)\?\.svg' index.html | head -2) \
		&& cp "$$1" ../../_static/look-back.svg && cp "$$2" ../../_static/look-back-dark.svg

preview:  ## draw the preview picture for shared links
	cd book && python preview.py

links:  ## open every link of the book (needs the network)
	jupyter-book build book --builder linkcheck

mystmd:  ## parse pages with Jupyter Book 2 (needs npm)
	pytest -o addopts=--import-mode=importlib -m benchmark tests/benchmarks/test_jupyter_book_2.py

test:  ## run all tests
	pytest

quick:  ## run the tests that need no browser, sandbox, built book or class of students
	pytest -m "not slow"

check:  ## check format, lint, types, imports, and exercises against solutions
	ruff format --check .
	ruff check .
	pyright
	lint-imports
	classroom release --verify

structure:  ## count the code of each part, and show which imports which
	python tests/structure/structure.py

release:  ## make exercises/ from solutions/
	classroom release

bench:  ## measure against peers; writes tests/benchmarks/records/
	pytest -o addopts=--import-mode=importlib -m benchmark tests/benchmarks

clean:  ## remove what builds and tests leave behind
	rm -rf book/_build build .pytest_cache .ruff_cache
