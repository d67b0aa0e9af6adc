"""`python -P -m train.trace OUT.json CONFIG.toml...`: see train/trace/estimate.py."""

from ranks.heavy_imports import heavy_imports

if __name__ == "__main__":
    with heavy_imports():
        from train.trace.estimate import main

    main()
