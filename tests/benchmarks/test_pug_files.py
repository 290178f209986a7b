from vlmtune.benchmarks.pug_files import spoken


def test_names_become_words():
    names = {"SciFiCity": "sci fi city", "Cofee_Mug": "cofee mug", "Power-drill": "power-drill"}
    assert {name: spoken(name) for name in names} == names
